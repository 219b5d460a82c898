"""The checker of histories, on histories of a million records: python -m bench.history [--quick] [--json FILE]

A compacted log, written by several producers one record a time, read once from the start by a tailing reader and again and
again by readers that see only what compaction left. The histories are legal, so every record is compared with everything. Times are the process's, not the wall's.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

from bench.support import console
from lastword.testing.history import (
    Fetch,
    History,
    Operation,
    Outcome,
    Produce,
    ProducedRecord,
    SeenRecord,
    StateRead,
    TopicCreated,
    check,
)

BATCH = 500
NOW_MS = 1_700_000_000_000


def history_of(records: int, keys: int, per_produce: int) -> History:
    """Return a history of so many records, of which each is read once in the tail, with ten full reads."""
    rng = random.Random(11)
    numbers = iter(range(100 * records))
    operations: list[Operation] = []
    log: list[SeenRecord] = []
    state: dict[bytes, bytes] = {}
    last: dict[bytes, int] = {}

    def base(process: str) -> dict[str, object]:
        number = next(numbers)
        return {
            "process": process,
            "invoked": number,
            "completed": next(numbers),
            "invoked_ms": NOW_MS + number,
            "completed_ms": NOW_MS + number,
            "outcome": Outcome.OK,
            "topic": "users",
        }

    operations.append(TopicCreated(**base("admin"), settings={"cleanup.policy": "compact"}))  # type: ignore[arg-type]
    full = max(records // 10, 1)
    while len(log) < records:
        start = len(log)
        sent = []
        for offset in range(start, start + per_produce):
            key = b"user-%08d" % rng.randrange(keys)
            value = None if rng.random() < 0.02 else b"value-%012d" % offset
            sent.append(ProducedRecord(key=key, value=value, timestamp_ms=NOW_MS))
            log.append(SeenRecord(offset=offset, key=key, value=value, timestamp_ms=NOW_MS))
            last[key] = offset
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        operations.append(
            Produce(**base(f"p{start % 4}"), partition=0, records=tuple(sent), base_offset=start)  # type: ignore[arg-type]
        )
        end = len(log)
        if end % BATCH == 0:
            operations.append(
                Fetch(  # type: ignore[arg-type]
                    **base("tail"),
                    partition=0,
                    session="tail",
                    from_offset=end - BATCH,
                    next_offset=end,
                    log_start=0,
                    high_watermark=end,
                    first_dirty=0,
                    records=tuple(log[end - BATCH : end]),
                )
            )
        if end % full == 0:
            left = tuple(log[offset] for offset in sorted(last.values()))
            operations.append(
                Fetch(  # type: ignore[arg-type]
                    **base("replay"),
                    partition=0,
                    session=f"replay {end}",
                    from_offset=0,
                    next_offset=end,
                    log_start=0,
                    high_watermark=end,
                    first_dirty=end,
                    records=left,
                )
            )
            operations.append(StateRead(**base("state"), state=dict(state)))  # type: ignore[arg-type]
    return History.of(operations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    records = 100_000 if options.quick else 1_000_000
    figures: dict[str, dict[str, float]] = {}
    for name, keys, per_produce in (
        ("many keys, batches of 100", records // 10, 100),
        ("few keys, batches of 100", records // 1000, 100),
        ("many keys, one record a produce", records // 10, 1),
    ):
        history = history_of(records, keys, per_produce)
        seen = sum(len(each.records) for each in history if isinstance(each, Fetch))
        start = time.process_time()
        report = check(history)
        checked = time.process_time() - start
        assert report.ok, report.anomalies[:3]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "history.jsonl")
            history.write(path)
            del history
            start = time.process_time()
            History.read(path)
            read = time.process_time() - start
        figures[name] = {
            "records_sent": records,
            "records_seen": seen,
            "check_seconds": checked,
            "read_seconds": read,
        }
        console.print(
            f"{name:34} {records:>9,} sent {seen:>9,} seen   checked in {checked:6.2f} s   file read in {read:6.2f} s"
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
