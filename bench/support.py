"""What the benchmarks share: data, rounds, a table at the end, raw results kept as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from rich.console import Console
from rich.table import Table

console = Console(highlight=False, width=170)

_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


def fixed_binary(data: np.ndarray) -> pa.Array:
    """A binary column of the rows of a two-dimensional array of bytes."""
    rows, width = data.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def keys_of(numbers: np.ndarray, width: int = 20) -> pa.Array:
    """Keys like user-00000000001234, `width` bytes each."""
    digits = np.empty((len(numbers), width), np.uint8)
    digits[:, :5] = np.frombuffer(b"user-", np.uint8)
    rest = numbers.astype(np.int64).copy()
    for column in range(width - 1, 4, -1):
        digits[:, column] = 48 + rest % 10
        rest //= 10
    return fixed_binary(digits)


def values_of(rng: np.random.Generator, rows: int, width: int) -> pa.Array:
    """Values that compress about two to one: half text that repeats, half random letters."""
    data = np.empty((rows, width), np.uint8)
    half = width // 2
    text = np.frombuffer(
        (b'{"name":"someone","city":"somewhere","plan":"free","tags":["a","b"]}' * 20)[:half], np.uint8
    )
    data[:, :half] = text
    data[:, half:] = _ALPHABET[rng.integers(0, 64, (rows, width - half), dtype=np.uint8)]
    return fixed_binary(data)


_ROW = (
    b'{"id":##########,"email":"user########@example.com","first_name":"@@@@@@@@","last_name":"@@@@@@@@",'
    b'"plan":"team","balance":######.##,"active":true,"updated_at":"2026-1#-1#T1#:##:##.###Z","visits":####}'
)
_NAMES = [b"Amalia", b"Bernardo", b"Charlote", b"Dominik", b"Eleonora", b"Ferdi", b"Guiliana", b"Heinrich"]


def rows_of(rng: np.random.Generator, rows: int, width: int) -> pa.Array:
    """Values as change capture gives them: rows of a table as JSON, repeated up to a width. About five to one."""
    template = np.frombuffer((_ROW * (width // len(_ROW) + 1))[:width], np.uint8)
    data = np.tile(template, (rows, 1))
    digits = np.flatnonzero(template == ord("#"))
    data[:, digits] = 48 + rng.integers(0, 10, (rows, len(digits)), dtype=np.uint8)
    names = np.array([np.frombuffer(name.ljust(8), np.uint8) for name in _NAMES])
    starts = np.flatnonzero(template == ord("@"))[::8]
    for start in starts:
        room = min(8, width - start)
        data[:, start : start + room] = names[rng.integers(0, len(names), rows)][:, :room]
    return fixed_binary(data)


@dataclass(slots=True)
class Usage:
    """CPU seconds of this process and its children, and the most memory that they had at a time."""

    cpu_s: float = 0.0
    peak_bytes: int = 0


@contextmanager
def usage() -> Iterator[Usage]:
    found = Usage()
    process = psutil.Process()

    def tree() -> list[psutil.Process]:
        return [process, *process.children(recursive=True)]

    def cpu() -> dict[int, float]:
        seconds = {}
        for each in tree():
            try:
                times = each.cpu_times()
                seconds[each.pid] = times.user + times.system
            except psutil.Error:
                continue
        return seconds

    before = cpu()
    with peak_memory(tree, found):
        yield found
    found.cpu_s = sum(seconds - before.get(pid, 0.0) for pid, seconds in cpu().items())


@contextmanager
def peak_memory(processes: Callable[[], Iterable[psutil.Process]], found: Usage) -> Iterator[None]:
    """Note the most memory that some processes have at a time, while the block runs."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            total = 0
            for each in processes():
                try:
                    total += each.memory_info().rss
                except psutil.Error:
                    continue
            found.peak_bytes = max(found.peak_bytes, total)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


@dataclass(slots=True)
class Results:
    """Rows of figures, shown as a table and kept as JSON."""

    name: str
    rows: list[dict[str, object]] = field(default_factory=list)

    def add(self, **row: object) -> None:
        self.rows.append(row)

    def show(self, title: str, rows: list[dict[str, object]] | None = None) -> None:
        shown = self.rows if rows is None else rows
        if not shown:
            return
        table = Table(title=title, title_justify="left", box=None, header_style="dim", padding=(0, 2))
        for column in shown[0]:
            table.add_column(column, justify="left" if isinstance(shown[0][column], str) else "right")
        for row in shown:
            table.add_row(*(_text(value) for value in row.values()))
        console.print(table)

    def save(self, path: Path | None) -> None:
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps({"benchmark": self.name, "machine": machine(), "rows": self.rows}, indent=1) + "\n"
        )
        console.print(f"kept in {path}")


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def machine() -> dict[str, object]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "commit": commit.stdout.strip(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def median(values: list[float]) -> float:
    return statistics.median(values)
