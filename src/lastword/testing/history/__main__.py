"""Check recorded histories: python -m lastword.testing.history FILE..."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from lastword.errors import InvalidError
from lastword.testing.history.check import check
from lastword.testing.history.history import History
from lastword.testing.history.lines import operation_data
from lastword.testing.history.options import Options
from lastword.testing.history.report import Report
from lastword.testing.history.rules import RULES
from lastword.testing.history.story import story, tell
from lastword.testing.history.words import text_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0 if there are no anomalies, 1 if there are some, 2 if a file can't be read."""
    parser = argparse.ArgumentParser(prog="python -m lastword.testing.history", description=__doc__)
    parser.add_argument("file", nargs="+", help="a recorder's file; all files are merged into one history")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--rule", action="append", choices=sorted(RULES), help="check this rule; repeatable")
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a broker's default for a topic setting; repeatable",
    )
    parser.add_argument(
        "--gaps-never-close",
        action="store_true",
        help="once a reader misses a record, no later reader may see it, as in Kafka",
    )
    parser.add_argument(
        "--at-least-once", action="store_true", help="a produce may be appended more than once"
    )
    parser.add_argument(
        "--clock-skew-ms", type=int, default=0, help="how far the recorded clock may lag behind the server's"
    )
    parser.add_argument("--stories", type=int, default=20, help="print at most this many anomalies per rule")
    given = parser.parse_args(arguments)
    options = Options(
        settings=dict(each.split("=", 1) for each in given.setting),
        gaps_never_close=given.gaps_never_close,
        at_least_once=given.at_least_once,
        clock_skew_ms=given.clock_skew_ms,
        rules=frozenset(given.rule) if given.rule else None,
        stories=given.stories,
    )
    try:
        report = check(History.read(*given.file), options)
    except (InvalidError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write((json.dumps(_data(report), indent=2) if given.json else tell(report)) + "\n")
    return 0 if report.ok else 1


def _data(report: Report) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "checked": dict(report.checked),
        "found": dict(report.found),
        "anomalies": [
            {
                **{
                    each.name: getattr(anomaly, each.name)
                    for each in fields(anomaly)
                    if each.name not in ("key", "events")
                },
                "key": None if anomaly.key is None else text_of(anomaly.key),
                "events": [
                    {"words": words, "operation": operation_data(operation)}
                    for operation, words in anomaly.events
                ],
                "story": story(anomaly),
            }
            for anomaly in report.anomalies
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
