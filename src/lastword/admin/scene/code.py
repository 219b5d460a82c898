"""The steps of a run as short code. Frames name its lines by their ids.

The code is simplified: segments are walked as in compaction/survivors.py, the rules check each record in order, and
one commit swaps the files.
"""

from __future__ import annotations

from typing import Any

from lastword.compaction.strategy import Order

_NEWEST_WINS = [
    ("find.start", "def find_winners(segments):"),
    ("find.set", "    seen = set()"),
    ("find.segment", "    for segment in reversed(segments):"),
    ("find.record", "        for record in reversed(segment):"),
    ("find.no_key", "            if record.key is None: continue"),
    ("find.lost", "            if record.key in seen: record.beaten = True"),
    ("find.clean", "            elif is_clean(segment): pass  # it has each key once"),
    ("find.won", "            else: seen.add(record.key)"),
]
_OLDEST_WINS = [
    ("find.start", "def find_winners(segments):"),
    ("find.set", "    seen = set()"),
    ("find.segment", "    for segment in segments:"),
    ("find.record", "        for record in segment:"),
    ("find.no_key", "            if record.key is None: continue"),
    ("find.lost", "            if record.key in seen: record.beaten = True"),
    ("find.won", "            else: seen.add(record.key)"),
]
_BEST_VERSION_WINS = [
    ("find.start", "def find_winners(segments):"),
    ("find.set", "    best = {}"),
    ("find.segment", "    for segment in segments:"),
    ("find.record", "        for record in segment:"),
    ("find.no_key", "            if record.key is None: continue"),
    ("find.lost", "            if version(record) < version(best.get(record.key)): record.beaten = True"),
    ("find.won", "            else: best[record.key] = record"),
]
_DECIDE = [
    ("decide.start", "def stays(record):"),
    ("decide.log_start", "    if record.offset < log_start: return False"),
    ("decide.beaten", "    if record.beaten: return segment.spared"),
    ("decide.tombstone", "    if record.value is None and may_go(record): return False"),
    ("decide.too_old", "    if age(record) > retention_ms: return False"),
    ("decide.stays", "    return True"),
]
_TOMBSTONE = [
    ("tombstone.start", "def may_go(tombstone):"),
    ("tombstone.first", "    if first_run_that_passes(tombstone): return False"),
    ("tombstone.expiry", "    if now < tombstone.deadline: return False"),
    (
        "tombstone.reader",
        "    if any(reader.position <= tombstone.offset for reader in active): return False",
    ),
    ("tombstone.late", "    return not older_versions_may_come(tombstone)"),
]
_REWRITE = [
    ("rewrite.start", "def rewrite(segments):"),
    ("rewrite.as_it_is", "    if loses_nothing(segments): return segments"),
    ("rewrite.write", "    return write(record for record in segments if stays(record))"),
    ("commit.start", "def commit(out, new):"),
    ("commit.swap", "    table.swap(out, new, positions)  # one snapshot: all or nothing"),
]


def listing(order: Order) -> list[dict[str, Any]]:
    """Return the code for strategies with this order, function by function."""
    find = {"newest": _NEWEST_WINS, "oldest": _OLDEST_WINS, "version": _BEST_VERSION_WINS}[order]
    titles = {
        "find the winners": find,
        "decide": _DECIDE,
        "a tombstone's end": _TOMBSTONE,
        "rewrite and commit": _REWRITE,
    }
    return [
        {"title": title, "lines": [{"id": line_id, "code": code} for line_id, code in lines]}
        for title, lines in titles.items()
    ]


def line_of(record: dict[str, Any]) -> str:
    """Return the line that decides about a record, from its verdict."""
    waits_for = record["waits_for"]
    match record["rule"]:
        case "below the log start":
            return "decide.log_start"
        case "beaten":
            return "decide.beaten"
        case "expired tombstone":
            return "decide.tombstone"
        case "too old":
            return "decide.too_old"
        case "tombstone":
            return {
                "first run": "tombstone.first",
                "expiry": "tombstone.expiry",
                "reader": "tombstone.reader",
                "late records": "tombstone.late",
            }[waits_for]
    return "decide.stays"
