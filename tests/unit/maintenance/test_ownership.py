"""Several data folders on one catalog: a topic has one owner, and the others neither change it nor lose anything of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.broker import INLINE
from tests.support.forks import killed_at
from tests.support.logs import fill, takes_appends, values
from tests.support.s3 import S3Server
from tests.support.segments import outside_catalog
from tests.support.waiting import wait_until

import lastword
from lastword.clock import SystemClock
from lastword.config import BrokerConfig
from lastword.errors import NotOwnerError, UnavailableError
from lastword.folder import disk, identity
from lastword.log import Log
from lastword.maintenance import ownership
from lastword.maintenance.rescue import local_records
from lastword.segments import mapping
from lastword.segments.storage import Storage
from lastword.wal.staged import Piece, Sink, Unit

Config = dict[str, object]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return outside_catalog(tmp_path)


@pytest.fixture
def opened() -> Iterator[Callable[..., Log]]:
    with ExitStack() as logs:
        yield lambda *given, **options: logs.enter_context(lastword.open(*given, **options))


def check_two_folders(tmp_path: Path, config: Config) -> None:
    """What is acknowledged is kept, by whoever acknowledged it; the other one is refused by name."""
    with (
        lastword.open(tmp_path / "one", config=config) as one,
        lastword.open(tmp_path / "two", config=config) as two,
    ):
        mine = one.create_topic("t")
        fill(mine, 0, 3)
        theirs = two.topic("t")
        with pytest.raises(NotOwnerError, match=f"'t' belongs to the data folder .*{tmp_path}/one on "):
            fill(theirs, 100, 101)
        with pytest.raises(NotOwnerError):
            theirs.seal()
        assert mine.seal().records == 3
        fill(mine, 3, 6)
        # Its own WAL has the newest; the other one sees what is sealed.
        assert values(mine.read()) == [*range(6)]
        assert values(theirs.read()) == [0, 1, 2]
        two.run_retention()
        two.compact()
        assert one.run_retention().problems == ()
        assert values(mine.read()) == [*range(6)]
        # The other one has topics of its own.
        fill(two.create_topic("u"), 0, 2)
        two.topic("u").seal()
        with pytest.raises(NotOwnerError):
            fill(one.topic("u"), 5, 6)
        assert [one.is_foreign(info) for info in one.topic_infos()] == [False, True]
        assert two.own_topics() == ["u"]


def test_two_folders_on_one_sqlite_catalog(tmp_path: Path, config: Config) -> None:
    check_two_folders(tmp_path, config)


def test_two_folders_on_postgresql_and_an_object_store(
    tmp_path: Path, config: Config, postgres_uri: str, s3: S3Server
) -> None:
    check_two_folders(
        tmp_path,
        {
            **config,
            "catalog": {"type": "sql", "uri": postgres_uri, **s3.properties},
            "warehouse": f"s3://{s3.bucket}/two-folders",
        },
    )


def test_nothing_of_a_topic_of_another_folder_can_be_changed(tmp_path: Path, config: Config) -> None:
    with lastword.open(tmp_path / "one", config=config) as one:
        fill(one.create_topic("t", config={"cleanup.policy": "compact"}), 0, 3)
        one.topic("t").seal()
        two = lastword.open(tmp_path / "two", config=config)
        attempts: list[Callable[[], object]] = [
            lambda: two.topic("t").append("k", "v"),
            lambda: two.topic("t").delete_records({0: 1}),
            lambda: two.alter_topic("t", set_config={"retention.ms": 5}),
            lambda: two.delete_topic("t"),
            lambda: two.erase("t", [b"k0"]),
            lambda: two.topic("t").seal(),
            lambda: two.topic("t").roll(due_only=False),
            lambda: two._catalog.load("t").expire(retention_ms=None),
            lambda: two._catalog.load("t").collect(grace_ms=None),
        ]
        before = sorted((tmp_path / "warehouse").rglob("*"))
        for number, attempt in enumerate(attempts):
            with pytest.raises(NotOwnerError, match="belongs to the data folder"):
                pytest.fail(f"attempt {number} was let through: {attempt()}")
        assert [each.problem for each in two.compact(["t"], force=True).problems] or two.compact(
            ["t"], force=True
        ).failed_topics
        two.close()
        assert sorted((tmp_path / "warehouse").rglob("*")) == before
        # Nor is anything noted to be done later.
        for name in ("deleting", "erasing"):
            assert list((tmp_path / "two" / name).glob("*")) == []
        assert values(one.topic("t").read()) == [0, 1, 2]


def test_read_only_and_maintenance_beside_the_owner(tmp_path: Path, config: Config) -> None:
    with lastword.open(tmp_path / "one", config=config) as one:
        fill(one.create_topic("t"), 0, 3)
        with lastword.open(tmp_path / "one", config=config, read_only=True) as reading:
            assert values(reading.topic("t").read()) == [0, 1, 2]
        with lastword.open(tmp_path / "one", config=config, maintain_only=True) as worker:
            assert worker.topic("t").seal().records == 3
        fill(one.topic("t"), 3, 5)
    # Without a writer too.
    with lastword.open(tmp_path / "one", config=config, maintain_only=True) as worker:
        assert worker.topic("t").seal().records == 2
        worker.run_retention()
    with lastword.open(tmp_path / "one", config=config) as one:
        assert values(one.topic("t").read()) == [*range(5)]
        fill(one.topic("t"), 5, 6)


def test_a_worker_goes_on_when_the_writer_is_opened_again(tmp_path: Path, config: Config) -> None:
    one = lastword.open(tmp_path / "one", config=config)
    fill(one.create_topic("t"), 0, 1)
    with lastword.open(tmp_path / "one", config=config, maintain_only=True) as worker:
        assert worker.topic("t").seal().records == 1
        one.close()
        with lastword.open(tmp_path / "one", config=config) as again:
            fill(again.topic("t"), 1, 2)
            assert worker.topic("t").seal().records == 1
            assert again.topic("t").seal().problems == ()


def test_opening_a_folder_with_everything_inside_costs_no_commit(tmp_path: Path) -> None:
    config: Config = {"compaction.service.factory": INLINE}
    with lastword.open(tmp_path / "one", config=config) as log:
        fill(log.create_topic("t"), 0, 1)
        owner = log.topic_infos()[0].owner
        assert owner is not None
        assert (owner.folder_id, owner.epoch, owner.incarnation) == (identity.load(log.path).id, 1, "")
    for _ in range(3):
        with lastword.open(tmp_path / "one", config=config) as log:
            fill(log.topic("t"), 1, 2)
            assert [each.operation for each in log.topic("t").history()] == ["create"]
            assert log._writer.confirmer is None
    assert identity.load(tmp_path / "one").incarnation == 0


def test_an_opening_of_a_shared_folder_is_noted_in_each_topic_before_its_first_append(
    tmp_path: Path, config: Config
) -> None:
    with lastword.open(tmp_path / "one", config=config) as log:
        log.create_topic("t")
        log.create_topic("other")
    with lastword.open(tmp_path / "one", config=config) as log:
        known = identity.load(log.path)
        assert known.incarnation == 2
        log.topic("t")
        owners = {info.name: info.owner.incarnation for info in log.topic_infos()}
        assert owners["t"] == f"2-{known.token}"
        assert owners["other"].startswith("1-")
        assert [each.operation for each in log.topic("t").history()] == ["create", "own"]


@pytest.mark.parametrize("step", ["own.incarnation.noted", "own.noted", "commit.before", "commit.done"])
def test_a_folder_that_was_killed_while_it_took_an_incarnation_opens_again(
    tmp_path: Path, config: Config, step: str
) -> None:
    with lastword.open(tmp_path / "one", config=config) as log:
        fill(log.create_topic("t"), 0, 2)

    def work() -> None:
        with lastword.open(tmp_path / "one", config=config) as log:
            log.topic("t")

    assert killed_at(step, work)
    assert killed_at(step, work)
    with lastword.open(tmp_path / "one", config=config) as log:
        fill(log.topic("t"), 2, 3)
        assert log.topic("t").seal().problems == ()
        assert values(log.topic("t").read()) == [0, 1, 2]


def cloned(folder: Path, name: str) -> Path:
    """As a snapshot of a disk that is mounted on another host at the same path: the identity says that it is home."""
    clone = Path(shutil.copytree(folder, folder.with_name(name)))
    known = identity.load(clone)
    identity.save(clone, identity.relocated(clone, known, new_id=None))
    return clone


def test_a_clone_of_the_disk_is_refused_once_the_original_has_gone_on(tmp_path: Path, config: Config) -> None:
    with lastword.open(tmp_path / "one", config=config) as log:
        fill(log.create_topic("t"), 0, 2)
    clone = cloned(tmp_path / "one", "clone")
    with lastword.open(tmp_path / "one", config=config) as log:
        fill(log.topic("t"), 2, 3)
    with lastword.open(clone, config=config) as stale:
        with pytest.raises(NotOwnerError, match=f"{clone} is a stale copy.*--as-copy"):
            stale.topic("t")
        with pytest.raises(NotOwnerError, match="stale copy"):
            stale.delete_topic("t")
    # As often as it is tried.
    with lastword.open(clone, config=config) as stale, pytest.raises(NotOwnerError, match="stale copy"):
        stale.topic("t")
    with lastword.open(tmp_path / "one", config=config) as log:
        assert values(log.topic("t").read()) == [0, 1, 2]


def test_a_topic_that_the_original_created_later_is_not_the_clones(tmp_path: Path, config: Config) -> None:
    with lastword.open(tmp_path / "one", config=config) as log:
        log.create_topic("t")
    clone = cloned(tmp_path / "one", "clone")
    with lastword.open(tmp_path / "one", config=config) as log:
        log.create_topic("later")
        with lastword.open(clone, config=config) as stale, pytest.raises(NotOwnerError, match="stale copy"):
            stale.topic("later")


def test_a_clone_that_comes_first_stops_the_original(tmp_path: Path, config: Config) -> None:
    """There is one of them that goes on, whichever it is."""
    with lastword.open(tmp_path / "one", config=config) as log:
        topic = log.create_topic("t")
        fill(topic, 0, 2)
        clone = cloned(tmp_path / "one", "clone")
        (clone / "locks" / "writer.lock").unlink()
        with lastword.open(clone, config=config) as other:
            fill(other.topic("t"), 2, 3)
            wait_until(lambda: not takes_appends(topic))
            with pytest.raises(NotOwnerError, match="stale copy"):
                fill(topic, 100, 101)
            with pytest.raises(NotOwnerError):
                fill(log.topic("t"), 100, 101)
            assert other.topic("t").seal().records == 3


def test_tables_of_the_first_version_are_claimed_by_the_first_who_writes(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as first_version:
        first_version.setattr(mapping, "owner_properties", lambda owner: {})
        with lastword.open(tmp_path / "one", config=config) as log:
            fill(log.create_topic("t"), 0, 2)
            assert log.topic_infos()[0].owner is None
    (tmp_path / "one" / "IDENTITY").unlink()
    with lastword.open(tmp_path / "one", config=config) as log:
        fill(log.topic("t"), 2, 3)
        assert log.topic_infos()[0].owner.folder_id == identity.load(log.path).id
        with lastword.open(tmp_path / "two", config=config) as two, pytest.raises(NotOwnerError):
            fill(two.topic("t"), 0, 1)
        assert log.topic("t").seal().records == 3


def test_a_table_of_the_first_version_inside_of_the_folder_is_claimed_with_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Config = {"compaction.service.factory": INLINE}
    with monkeypatch.context() as first_version:
        first_version.setattr(mapping, "owner_properties", lambda owner: {})
        with lastword.open(tmp_path / "one", config=config) as log:
            fill(log.create_topic("t"), 0, 2)
    (tmp_path / "one" / "IDENTITY").unlink()
    with lastword.open(tmp_path / "one", config=config, maintain_only=True) as log:
        assert log.topic("t").seal().records == 2
        assert log.topic_infos()[0].owner.folder_id == identity.load(log.path).id


def test_without_a_confirmation_nothing_is_acknowledged(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lastword.open(tmp_path / "one", config=config) as log:
        topic = log.create_topic("t")
        fill(topic, 0, 1)
        later_s = ownership.CONFIRMED_FOR_S + 1
        with monkeypatch.context() as silent:
            silent.setattr(log._catalog._loader, "pointers", _unreachable)
            log._writer.confirmer.close()
            now_s = ownership.now_s()
            silent.setattr(ownership, "now_s", lambda: now_s + later_s)
            with pytest.raises(UnavailableError, match="can't be reached"):
                log._ownership.confirm(log._catalog)
            with pytest.raises(NotOwnerError, match=r"'t' could not be confirmed for \d s"):
                fill(topic, 1, 2)
        log._ownership.confirm(log._catalog)
        fill(topic, 1, 2)
        assert values(topic.read()) == [0, 1]


def _unreachable() -> None:
    raise OSError("the catalog can't be reached")


def test_the_thread_confirms_by_itself(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "CONFIRM_INTERVAL_S", 0.01)
    with lastword.open(tmp_path / "one", config=config) as log:
        topic = log.create_topic("t")
        held = log._ownership._held[topic.id]
        before_s = held.confirmed_s
        wait_until(lambda: held.confirmed_s > before_s + 0.05)
        assert held.pointer is not None
        topic.seal()
        fill(topic, 0, 1)
        assert topic.seal().records == 1
        after_s = ownership.now_s()
        wait_until(lambda: held.confirmed_s > after_s)
        fill(topic, 1, 2)


def test_a_topic_that_was_deleted_and_created_again_is_not_taken_for_one_that_was_lost(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lastword.open(tmp_path / "one", config=config) as log:
        log._writer.confirmer.close()
        log.create_topic("t")
        look = log._catalog._loader.pointers

        def create_again() -> object:
            monkeypatch.setattr(log._catalog._loader, "pointers", look)
            log.delete_topic("t")
            found = look()
            created.append(log.create_topic("t"))
            return found

        created: list[lastword.Topic] = []
        monkeypatch.setattr(log._catalog._loader, "pointers", create_again)
        for lost in log._ownership.confirm(log._catalog):
            log._topics.lost(lost)
        assert log.topic("t") is created[0]
        fill(created[0], 0, 1)
        assert values(log.topic("t").read()) == [0]


@pytest.mark.parametrize("way", ["append_batch", "append_staged"])
def test_what_was_lost_while_it_was_synced_is_not_acknowledged(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    with lastword.open(tmp_path / "one", config=config) as log:
        topic = log.create_topic("t")
        log._writer.confirmer.close()
        sync = disk.fdatasync
        now_s = ownership.now_s()

        def take_long(fd: int) -> None:
            sync(fd)
            monkeypatch.setattr(ownership, "now_s", lambda: now_s + ownership.CONFIRMED_FOR_S + 1)

        ((_, data),) = topic.encode_arrow(pa.table({"key": ["k"], "value": ["0"]}))
        if way == "append_staged":
            sink = Sink(log.path, topic.id, "q")
            disk.make_folder(sink.folder)
            (sink.folder / "x.batches").write_bytes(data)
            sink.propose(Unit(number=1, pieces={0: [Piece("x.batches", 0, len(data))]}))
        monkeypatch.setattr(disk, "fdatasync", take_long)
        with pytest.raises(NotOwnerError, match="could not be confirmed"):
            if way == "append_batch":
                topic.append_batch(0, data)
            else:
                topic.append_staged("q", 1)


def test_a_folder_that_a_clone_has_overtaken_keeps_what_it_had_not_sealed(
    tmp_path: Path, config: Config
) -> None:
    with lastword.open(tmp_path / "one", config=config) as log:
        log.create_topic("t")
        log._writer.confirmer.close()
        clone = cloned(tmp_path / "one", "clone")
        fill(log.topic("t"), 0, 3)
        log.topic("t").roll(due_only=False)
        before = sorted(log.path.glob("wal/*/*/*/0/wal.*.log"))
        with lastword.open(clone, config=config) as overtaking:
            fill(overtaking.topic("t"), 10, 20)
            overtaking.topic("t").seal()
        with lastword.open(tmp_path / "one", config=config, maintain_only=True) as worker:
            report = worker.run_retention(steps=["delete"])
            assert "is a stale copy" in report.problems[0][1]
            with pytest.raises(NotOwnerError, match="is a stale copy"):
                worker.erase("t", [b"k10"])
        assert sorted(log.path.glob("wal/*/*/*/0/wal.*.log")) == before
    storage = Storage.of(tmp_path / "one", BrokerConfig.from_mapping(config, where="config"))
    (wal,) = local_records(storage, "t", SystemClock())
    assert values(wal.read()) == [0, 1, 2]
