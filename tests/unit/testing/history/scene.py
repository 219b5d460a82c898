"""Short histories, written as sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count

from lastword.testing.history import (
    Options,
    Point,
    ProducedRecord,
    Recorder,
    Report,
    RestartKind,
    SeenRecord,
    check,
    tell,
)

TOPIC = "users"
COMPACT = {"cleanup.policy": "compact", "delete.retention.ms": "60000"}

Cells = Mapping[int, str]
"""What is shown at each offset: `alice=v1`, a tombstone as `alice`."""


class Clock:
    def __init__(self) -> None:
        self.time_ms = 1_000_000

    def now_ms(self) -> int:
        return self.time_ms


def record_of(text: str) -> tuple[bytes, bytes | None]:
    key, _, value = text.partition("=")
    return key.encode(), value.encode() if value else None


class Scene:
    """A history of one partition that grows sentence by sentence. Each operation has ended before the next begins."""

    def __init__(self, settings: Mapping[str, str] = COMPACT, *, created: bool = True) -> None:
        self.clock = Clock()
        self.recorder = Recorder(clock=self.clock, order=count(1).__next__)
        self.sessions = count(1)
        self.end = 0
        if created:
            self.create(settings)

    def create(self, settings: Mapping[str, str] = COMPACT) -> None:
        with self.recorder.topic_created(TOPIC, settings, process="admin") as op:
            op.ok()
        self.end = 0

    def delete(self) -> None:
        with self.recorder.topic_deleted(TOPIC, process="admin") as op:
            op.ok()

    def produce(self, *texts: str, at: int | None = None, headers: tuple[tuple[str, bytes], ...] = ()) -> int:
        with self.recorder.produce(TOPIC, 0, self.records(*texts, headers=headers), process="p") as op:
            base = self.end if at is None else at
            op.acknowledged(base)
        self.end = base + len(texts)
        return base

    def records(self, *texts: str, headers: tuple[tuple[str, bytes], ...] = ()) -> list[ProducedRecord]:
        pairs = [record_of(text) for text in texts]
        return [
            ProducedRecord(key=key, value=value, timestamp_ms=self.clock.time_ms, headers=headers)
            for key, value in pairs
        ]

    def doubt(self, *texts: str) -> None:
        with self.recorder.produce(TOPIC, 0, self.records(*texts), process="p") as op:
            op.doubt("timeout")

    def refuse(self, *texts: str) -> None:
        with self.recorder.produce(TOPIC, 0, self.records(*texts), process="p") as op:
            op.refused("no")

    def wait(self, duration_ms: int) -> None:
        self.clock.time_ms += duration_ms

    def fetch(
        self,
        cells: Cells,
        *,
        start: int = 0,
        end: int | None = None,
        session: str | None = None,
        log_start: int | None = 0,
        high_watermark: int | None = None,
        first_dirty: int | None = None,
        timestamp_ms: int | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> None:
        name = session or f"s{next(self.sessions)}"
        with self.recorder.fetch(TOPIC, 0, start, session=name, process="c") as op:
            op.returned(
                self.seen(cells, timestamp_ms=timestamp_ms, headers=headers),
                self.end if end is None else end,
                log_start=log_start,
                high_watermark=self.end if high_watermark is None else high_watermark,
                first_dirty=first_dirty,
            )

    def seen(
        self, cells: Cells, *, timestamp_ms: int | None = None, headers: Iterable[tuple[str, bytes]] = ()
    ) -> list[SeenRecord]:
        return [
            SeenRecord(
                offset=offset,
                key=record_of(text)[0],
                value=record_of(text)[1],
                timestamp_ms=timestamp_ms,
                headers=tuple(headers),
            )
            for offset, text in cells.items()
        ]

    def state(self, *texts: str, as_of: Point | None = None) -> None:
        with self.recorder.state_read(TOPIC, as_of=as_of, process="c") as op:
            op.returned({key: value or b"" for key, value in map(record_of, texts)})

    def travel(self, last: int, cells: Cells) -> None:
        with self.recorder.time_travel(TOPIC, 0, Point(offsets={0: last}), process="c") as op:
            op.returned(self.seen(cells))

    def erase(self, *keys: str, in_doubt: bool = False, is_over: bool = False) -> None:
        with self.recorder.erase(TOPIC, [key.encode() for key in keys], process="admin") as op:
            if in_doubt:
                op.doubt("killed", is_over=is_over)
            else:
                op.ok()

    def delete_before(self, offset: int) -> None:
        with self.recorder.delete_records(TOPIC, 0, offset, process="admin") as op:
            op.ok()

    def positions(self, **values: int) -> None:
        with self.recorder.positions(TOPIC, 0, process="admin") as op:
            op.returned(**values)

    def change(self, **settings: str) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        with self.recorder.topic_settings(TOPIC, named, process="admin") as op:
            op.ok()

    def commit(self, offset: int) -> None:
        with self.recorder.offset_commit("g", TOPIC, 0, offset, process="c") as op:
            op.ok()

    def committed(self, offset: int | None) -> None:
        with self.recorder.offset_read("g", TOPIC, 0, process="c") as op:
            op.returned(offset)

    def restart(self, kind: RestartKind = RestartKind.KILL) -> None:
        with self.recorder.restart(kind, process="admin") as op:
            op.ok()

    def take_over(self) -> None:
        with self.recorder.takeover(process="admin") as op:
            op.ok()

    def restore(self, began: int, ended: int) -> None:
        with self.recorder.restore(began, ended, process="admin") as op:
            op.ok()

    def check(self, options: Options | None = None) -> Report:
        return check(self.recorder.history(), options)

    def is_legal(self, options: Options | None = None) -> None:
        report = self.check(options)
        assert report.ok, tell(report)

    def violates(self, rule: str, options: Options | None = None) -> Report:
        report = self.check(options)
        assert rule in report.found, f"{dict(report.found)}\n{tell(report)}"
        assert tell(report)
        return report
