"""Files that the disk has cut short or in which it has flipped bits: found, named, confined, and left behind on demand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.crash import Children
from tests.support.crash_child import Job

import lastword
from lastword.errors import CorruptError, StorageError

BATCHES = 8
PER_BATCH = 3
INLINE = "lastword.compaction.inline:InlineCompactionServiceFactory"


@contextmanager
def opened(folder: Path) -> Iterator[lastword.Topic]:
    with lastword.open(folder) as log:
        if "events" not in log.topics():
            log.create_topic("events", partitions=2, config={"retention.ms": -1})
        yield log.topic("events")


def value_of(batch: int, index: int) -> bytes:
    return b"batch %d record %d " % (batch, index) + random.Random(batch * 100 + index).randbytes(60)


def append_batches(topic: lastword.Topic, first: int = 0, count: int = BATCHES) -> None:
    for batch in range(first, first + count):
        topic.append_many(
            [lastword.NewRecord(key=b"key", value=value_of(batch, index)) for index in range(PER_BATCH)],
            partition=0,
        )
    topic.append("key", b"of the other partition", partition=1)


def expected(batches: Iterator[int] | range) -> list[tuple[int, bytes]]:
    return [
        (batch * PER_BATCH + index, value_of(batch, index)) for batch in batches for index in range(PER_BATCH)
    ]


def read_all(topic: lastword.Topic, start: int = 0) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in topic.read(start, partition=0)]


def read_until_damage(topic: lastword.Topic) -> tuple[list[tuple[int, bytes | None]], Any]:
    found: list[tuple[int, bytes | None]] = []
    try:
        for record in topic.read(partition=0):
            found.append((record.offset, record.value))
    except CorruptError as error:
        assert error.path
        return found, error
    except StorageError as error:
        # One bit away from the number of our format are those of others.
        assert "has format" in str(error)
        return found, error
    return found, None


def wal_of(folder: Path, partition: int = 0) -> Path:
    [found] = folder.glob(f"wal/default/events/*/{partition}")
    return found


def active_of(folder: Path) -> Path:
    return sorted(wal_of(folder).glob("wal.*.log"))[-1]


def as_after_a_kill(folder: Path, append: int = BATCHES) -> Path:
    """A folder whose writer was never closed: files as they were while it ran. Its active file."""
    with opened(folder) as topic:
        append_batches(topic, 0, append)
        image = {path: path.read_bytes() for path in wal_of(folder).iterdir() if path.is_file()}
    for path, data in image.items():
        path.write_bytes(data)
    return active_of(folder)


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def batch_bytes(path: Path) -> int:
    """All batches have the same size here."""
    size = path.stat().st_size
    assert size % BATCHES == 0
    return size // BATCHES


def check_other_partition(topic: lastword.Topic, count: int) -> None:
    assert [record.value for record in topic.read(partition=1)] == [b"of the other partition"] * count


# ------------------------------------------------------------------------------------------------ the active file


def test_torn_after_what_was_durable(folder: Path) -> None:
    """A beginning of a batch behind the last one: cut, kept aside, and nobody is bothered."""
    active = as_after_a_kill(folder)
    torn = active.read_bytes()[:100]
    with active.open("ab") as file:
        file.write(torn)
    with opened(folder) as topic:
        assert read_all(topic) == expected(range(BATCHES))
        assert topic.describe().partitions[0].problem is None
        assert topic.wal_damage() == []
        assert [path.read_bytes() for path in (wal_of(folder) / "aside").iterdir()] == [torn]
        append_batches(topic, BATCHES, 1)
        assert read_all(topic) == expected(range(BATCHES + 1))


def test_garbage_after_what_was_durable(folder: Path) -> None:
    active = as_after_a_kill(folder)
    for garbage in (bytes(300), random.Random(1).randbytes(300), active.read_bytes()[: batch_bytes(active)]):
        with active.open("ab") as file:
            file.write(garbage)
        with opened(folder) as topic:
            assert read_all(topic) == expected(range(BATCHES)), garbage[:20]
            assert topic.wal_damage() == []


@pytest.mark.parametrize("damage", ["flipped", "cut short"])
@pytest.mark.parametrize("batch", [0, 4, BATCHES - 1])
def test_damage_below_what_was_durable(folder: Path, damage: str, batch: int) -> None:
    active = as_after_a_kill(folder)
    size = batch_bytes(active)
    if damage == "flipped":
        flip(active, batch * size + size // 2)
        left = [each for each in range(BATCHES) if each != batch]
    else:
        active.write_bytes(active.read_bytes()[: batch * size + size // 2])
        left = list(range(batch))
    with opened(folder) as topic:
        found, error = read_until_damage(topic)
        assert found == expected(range(batch)), "what comes before the damage is read"
        assert error is not None and error.path == str(active) and error.offset == batch * PER_BATCH
        assert "wal repair" in str(error)
        assert "damaged" in (topic.describe().partitions[0].problem or "")
        check_other_partition(topic, 1)
        # Appends go on behind it.
        append_batches(topic, BATCHES, 1)
        assert read_all(topic, BATCHES * PER_BATCH) == expected(range(BATCHES, BATCHES + 1))
        [(partition, problem)] = topic.seal().problems
        assert partition == 0 and str(active) in problem
        assert topic.describe().partitions[0].sealed_end <= batch * PER_BATCH
        assert topic.describe().partitions[1].sealed_end == 2, "the other partition is sealed"
        shown = topic.wal_damage()
        assert [(partition, each.first_offset) for partition, each in shown] == [(0, batch * PER_BATCH)]
    with opened(folder) as topic:
        assert topic.wal_damage() == shown, "showing it changes nothing"
        assert topic.skip_wal_damage() == shown
        assert topic.wal_damage() == []
        kept = expected(iter([*left, BATCHES]))
        assert read_all(topic) == kept
        assert topic.seal().problems == ()
        assert read_all(topic) == kept
        assert topic.describe().partitions[0].problem is None
    with opened(folder) as topic:
        assert read_all(topic) == kept
        check_other_partition(topic, 2)


def test_a_compaction_reports_what_it_could_not_seal(folder: Path) -> None:
    active = as_after_a_kill(folder)
    flip(active, batch_bytes(active) * 3 + 70)
    with lastword.open(folder, config={"compaction.service.factory": INLINE}) as log:
        report = log.compact(["events"], seal=True, asked_for=True)
        [failure] = report.failures
        assert (failure.topic, failure.partition) == ("events", 0)
        assert str(active) in failure.message


# ------------------------------------------------------------------------------------------------ any flipped bit


@pytest.mark.parametrize("place", ["killed", "closed", "rolled"])
def test_any_flipped_bit_is_found(folder: Path, place: str) -> None:
    """Wherever a bit flips in a WAL file, no read gives a record that is not what was appended at its offset."""
    where = random.Random(place)
    active = as_after_a_kill(folder)
    if place != "killed":
        with opened(folder) as topic:
            if place == "rolled":
                topic.partition(0).writer.roll()
    whole = {path: path.read_bytes() for path in wal_of(folder).iterdir() if path.is_file()}
    right = dict(expected(range(BATCHES)))
    size = batch_bytes(active)
    header = [size * 3 + at for at in range(61)]
    for position in [*header, *where.sample(range(len(whole[active])), 40)]:
        for path in wal_of(folder).glob("wal.*"):
            path.unlink()
        for path, data in whole.items():
            path.write_bytes(data)
        flip(active, position, where.randrange(8))
        with lastword.open(folder) as log:
            topic = log.topic("events")
            found, error = read_until_damage(topic)
            assert found == [(offset, right[offset]) for offset, _ in found], f"byte {position}"
            if 12 <= position % size < 16:
                # The leader epoch is covered by nothing, and changes no record.
                assert error is None and len(found) == len(right)
                continue
            assert error is not None, f"the flipped bit in byte {position} was not found"
            assert error.offset is not None and error.offset <= position // size * PER_BATCH
            assert topic.seal().problems, "damage was sealed"
            after, _ = read_until_damage(topic)
            assert after == found, f"byte {position}, after sealing was tried"


# ------------------------------------------------------------------------------------------------ rolled files


def test_a_rolled_file_that_is_sealed_is_not_missed(folder: Path) -> None:
    """What is sealed is read from there: damage in its WAL file bothers nobody."""
    with opened(folder) as topic:
        append_batches(topic)
        rolled = active_of(folder)
        assert topic.seal().problems == ()
        flip(rolled, rolled.stat().st_size // 2)
        assert read_all(topic) == expected(range(BATCHES))
        assert topic.wal_damage() == []
        rolled.unlink()
        assert read_all(topic) == expected(range(BATCHES))
    with opened(folder) as topic:
        assert read_all(topic) == expected(range(BATCHES))
        append_batches(topic, BATCHES, 1)
        assert topic.seal().problems == ()
        assert read_all(topic) == expected(range(BATCHES + 1))


@pytest.mark.parametrize("damage", ["flipped", "cut short", "missing"])
def test_a_rolled_file_that_is_not_sealed(folder: Path, damage: str) -> None:
    with opened(folder) as topic:
        append_batches(topic)
        topic.partition(0).writer.roll()
        append_batches(topic, BATCHES, 2)
    rolled = sorted(wal_of(folder).glob("wal.*.log"))[0]
    size = rolled.stat().st_size // BATCHES
    left: list[int]
    match damage:
        case "flipped":
            flip(rolled, 2 * size + 30)
            left = [0, 1, 3, 4, 5, 6, 7, 8, 9]
        case "cut short":
            rolled.write_bytes(rolled.read_bytes()[: 5 * size])
            left = [0, 1, 2, 3, 4, 8, 9]
        case _:
            rolled.unlink()
            left = [8, 9]
    with opened(folder) as topic:
        _, error = read_until_damage(topic)
        assert error is not None and "wal repair" in str(error)
        assert read_all(topic, BATCHES * PER_BATCH) == expected(range(BATCHES, BATCHES + 2))
        assert [partition for partition, _ in topic.seal().problems] == [0]
        check_other_partition(topic, 2)
        append_batches(topic, BATCHES + 2, 1)
        left.append(BATCHES + 2)
        assert len(topic.skip_wal_damage()) == 1
        assert read_all(topic) == expected(iter(left))
        assert topic.seal().problems == ()
        assert read_all(topic) == expected(iter(left))
    with opened(folder) as topic:
        assert read_all(topic) == expected(iter(left))


# ------------------------------------------------------------------------------------------------ killed meanwhile


@pytest.mark.parametrize(
    "step", ["wal.recover.created", "wal.repair.written", "wal.repair.replaced", "wal.repair.noted"]
)
def test_killed_while_damage_is_left_behind(children: Children, folder: Path, step: str) -> None:
    active = as_after_a_kill(folder)
    flip(active, 3 * batch_bytes(active) + 80)
    for run in range(2):
        running = children.start(Job(folder=str(folder), run=run, role="repair", kill_step=step))
        running.finish()
        if run == 0:
            assert running.killed_at == step
    left = [batch for batch in range(BATCHES) if batch != 3]
    with opened(folder) as topic:
        topic.skip_wal_damage()
        assert read_all(topic) == expected(iter(left))
        assert topic.seal().problems == ()
        assert topic.wal_damage() == []
        assert read_all(topic) == expected(iter(left))
        append_batches(topic, BATCHES, 1)
        assert read_all(topic) == expected(iter([*left, BATCHES]))
    assert not list(wal_of(folder).glob("*.repair"))


# ------------------------------------------------------------------------------------------------ sealed segments


def test_damage_in_a_segment_file(folder: Path) -> None:
    """Wherever a bit flips, no read gives a wrong record; other partitions and the WAL go on."""
    with opened(folder) as topic:
        append_batches(topic)
        topic.seal()
    [segment] = folder.glob("warehouse/default/events/*/data/partition=0/*.parquet")
    whole = segment.read_bytes()
    right = expected(range(BATCHES))
    found_damage = 0
    where = random.Random(5)
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    positions = [
        *where.sample(range(len(whole) - footer), 60),
        *where.sample(range(len(whole) - footer, len(whole)), 200),
    ]
    with opened(folder) as topic:
        for position in positions:
            flip(segment, position, where.randrange(8))
            found, error = read_until_damage(topic)
            if error is None:
                assert found == right, f"a bit flipped in byte {position} of {len(whole)}, and nobody said so"
            else:
                found_damage += 1
                assert found == right[: len(found)], f"byte {position}"
                assert segment.name in str(error)
            segment.write_bytes(whole)
        assert found_damage > len(positions) // 4
        segment.write_bytes(whole[: len(whole) // 2])
        _, error = read_until_damage(topic)
        assert error is not None
        append_batches(topic, BATCHES, 1)
        assert topic.seal().problems == ()
        assert read_all(topic, BATCHES * PER_BATCH) == expected(range(BATCHES, BATCHES + 1))
        check_other_partition(topic, 2)
        # The way out is to give the records up.
        topic.delete_records({0: BATCHES * PER_BATCH})
        assert read_all(topic, BATCHES * PER_BATCH) == expected(range(BATCHES, BATCHES + 1))


def test_a_segment_file_that_is_gone(folder: Path) -> None:
    with opened(folder) as topic:
        append_batches(topic)
        topic.seal()
        [segment] = folder.glob("warehouse/default/events/*/data/partition=0/*.parquet")
        segment.unlink()
        _, error = read_until_damage(topic)
        assert error is not None and segment.name in str(error)
        check_other_partition(topic, 1)
        append_batches(topic, BATCHES, 1)
        assert topic.seal().problems == ()
