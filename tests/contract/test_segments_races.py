"""Writers that commit at the same moment: of those that planned on one snapshot, exactly one wins."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier as ProcessBarrier
from pathlib import Path
from threading import Barrier

import pytest
from tests.support.segments import (
    Place,
    append,
    local_place,
    new_topic,
    offsets_of,
    records,
    write_segment,
)

from lastword.clock import SystemClock
from lastword.errors import ConflictError, TopicExistsError
from lastword.segments.catalog import SegmentCatalog
from lastword.segments.model import Positions
from lastword.segments.table import SegmentTable

WRITERS = 4
ROUNDS = 6


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = local_place(tmp_path)
    yield place
    place.close()


def seal_next(table: SegmentTable, barrier: Barrier | ProcessBarrier) -> bool:
    """Everybody looks at the table, then everybody commits the same range."""
    base = table.snapshot()
    first = base.positions[0].sealed_end
    segment = write_segment(table, records(first))
    barrier.wait(timeout=180)
    try:
        table.append(base, [segment], {0: Positions(sealed_end=first + 10)}, operation="seal")
    except ConflictError:
        return False
    finally:
        barrier.wait(timeout=180)
    return True


@pytest.mark.parametrize("shared", [True, False], ids=["one table object", "an object each"])
def test_threads(place: Place, shared: bool) -> None:
    catalog = place.open()
    table = catalog.create(new_topic())
    tables = [table] * WRITERS if shared else [place.open().load("events") for _ in range(WRITERS)]
    barrier = Barrier(WRITERS)
    with ThreadPoolExecutor(WRITERS) as pool:
        for _ in range(ROUNDS):
            wins = list(pool.map(lambda each: seal_next(each, barrier), tables))
            assert sum(wins) == 1

    for each in [*tables, place.open().load("events")]:
        assert offsets_of(each, each.snapshot()) == list(range(ROUNDS * 10))
        assert each.snapshot().positions[0].sealed_end == ROUNDS * 10


def _seal_in_a_process(folder: str, barrier: ProcessBarrier) -> list[bool]:
    catalog = SegmentCatalog.open(
        properties={"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"},
        warehouse=f"{folder}/warehouse",
        clock=SystemClock(),
    )
    table = catalog.load("events")
    wins = [seal_next(table, barrier) for _ in range(ROUNDS)]
    catalog.close()
    return wins


def test_processes(place: Place, tmp_path: Path) -> None:
    table = place.open().create(new_topic())
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([__name__])
    with forks.Manager() as manager, forks.Pool(WRITERS) as pool:
        barrier = manager.Barrier(WRITERS)
        tasks = [pool.apply_async(_seal_in_a_process, (str(tmp_path), barrier)) for _ in range(WRITERS)]
        wins = [task.get(timeout=120) for task in tasks]

    assert [sum(of_a_round) for of_a_round in zip(*wins, strict=True)] == [1] * ROUNDS
    assert offsets_of(table, table.snapshot()) == list(range(ROUNDS * 10))


def test_readers_go_on_while_others_commit_and_expire(place: Place) -> None:
    """Metadata files come and go under a reader; it always sees one whole state."""
    catalog = place.open()
    writer = catalog.create(new_topic())
    reader = place.open().load("events")
    seen: list[int] = []

    def read_on() -> None:
        while not seen or seen[-1] < 250:
            now = reader.snapshot()
            planned = reader.plan(now)
            end = now.positions[0].sealed_end
            assert sum(segment.records for segment in planned) == end
            seen.append(end)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_on)
        for first in range(0, 250, 10):
            append(writer, first)
            writer.expire(retention_ms=1)
            place.clock.move(1)
        reading.result(timeout=180)
    assert seen == sorted(seen)


def test_topics_created_at_once(place: Place) -> None:
    catalogs = [place.open() for _ in range(WRITERS)]
    barrier = Barrier(WRITERS)

    def create(each: SegmentCatalog) -> str:
        topic = new_topic("ns.events")
        barrier.wait(timeout=180)
        try:
            return each.create(topic).snapshot().topic.id.hex
        except TopicExistsError:
            return "exists"

    with ThreadPoolExecutor(WRITERS) as pool:
        outcomes = list(pool.map(create, catalogs))

    winner = place.open().load("ns.events").snapshot().topic.id.hex
    assert sorted(outcomes) == sorted([winner, *["exists"] * (WRITERS - 1)])
    assert {path.split("/")[-3] for path in place.files()} == {winner}
