"""Results that are kept after each row, so that an interrupted run loses nothing and parts can be run one by one.

A row is known by its `part`, `data` and `what`. A row that is measured again takes the place of the old one; the others
stay. Rows of a quick run and of a full one never stand in one file.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from bench.support import Results, console, machine


class Kept:
    def __init__(self, name: str, path: Path | None, *, quick: bool, versions: dict[str, str]) -> None:
        self._name = name
        self._path = path
        self._quick = quick
        self._versions = versions
        self._new: list[dict[str, object]] = []
        self.rows: list[dict[str, object]] = []
        if path is not None and path.exists():
            found = json.loads(path.read_text())
            if found.get("quick") == quick:
                self.rows = found["rows"]

    def add(self, *, part: str, data: str, what: str, **figures: object) -> None:
        row: dict[str, object] = {"part": part, "data": data, "what": what, **figures}
        console.print("  ".join(f"{key}={_short(value)}" for key, value in row.items()), style="dim")
        row["measured"] = {
            "commit": machine()["commit"],
            "at": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
        }
        known = [_name(old) for old in self.rows]
        if _name(row) in known:
            self.rows[known.index(_name(row))] = row
        else:
            self.rows.append(row)
        self._new.append(row)
        self._save()

    def show(self, part: str, title: str, columns: dict[str, str]) -> None:
        """The rows of this run's part as a table; `columns` are field and heading."""
        rows = [row for row in self._new if row["part"] == part]
        shown = [{heading: row.get(field, "") for field, heading in columns.items()} for row in rows]
        Results(self._name).show(title, shown)

    def _save(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "benchmark": self._name,
            "quick": self._quick,
            "machine": machine(),
            "versions": self._versions,
            "rows": self.rows,
        }
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        unfinished.write_text(json.dumps(content, indent=1) + "\n")
        unfinished.replace(self._path)


def _name(row: dict[str, object]) -> tuple[object, object, object]:
    return row.get("part"), row.get("data"), row.get("what")


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
