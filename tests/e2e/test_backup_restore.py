"""Backups where they are made and restored: under load, on object stores, from a PostgreSQL catalog, beside a server."""

from __future__ import annotations

import threading
from operator import itemgetter
from pathlib import Path
from typing import Any

from tests.support.clock import ManualClock
from tests.support.compacted import INLINE_CONFIG
from tests.support.forks import killed_at
from tests.support.logs import fill, open_log, values
from tests.support.postgres import Cluster
from tests.support.s3 import S3Server
from tests.support.sources import postgres_source, running
from tests.support.waiting import wait_until

import lastword
from lastword.connect import states
from lastword.errors import LockedError
from lastword.folder import identity
from lastword.log import Log

BUSY = {
    **INLINE_CONFIG,
    "local.retention.ms": 0,
    "snapshot.retention.ms": 0,
    "collect.grace.ms": 0,
    "segment.bytes": 20_000,
}


# ------------------------------------------------------------------------------------------------ under load


class Load:
    """Appends, and seals, compacts, expires, collects and deletes WAL files, until it is told to end."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.acknowledged: dict[str, int] = {}
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._round_done = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(act,)) for act in (self._append, self._maintain)
        ]

    def __enter__(self) -> Load:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()
        if self.error is not None:
            raise self.error

    def wait_for_more(self) -> None:
        """Wait until much has been appended, and everything has been done to it."""
        enough = self.acknowledged.get("words", 0) + 200
        wait_until(
            lambda: self.error is not None or self.acknowledged.get("words", 0) > enough, "more is appended"
        )
        self._round_done.clear()
        assert self._round_done.wait(180), self.error

    def _guarded(self, act: Any) -> None:
        try:
            while not self._stop.is_set():
                act()
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def _append(self) -> None:
        for name, config in (("kept", "delete"), ("words", "compact")):
            topic = self.log.topic(name)
            number = self.acknowledged.get(name, -1) + 1
            topic.append(
                f"k{number % 50 if config == 'compact' else number}", str(number), partition=number % 2
            )
            self.acknowledged[name] = number

    def _maintain(self) -> None:
        for name in ("kept", "words"):
            self.log.topic(name).seal()
        try:
            self.log.compact(["words"], asked_for=True)
            self.log.run_retention()
        except LockedError:
            pass
        self._round_done.set()


def test_nothing_is_lost_or_doubled_under_load(tmp_path: Path) -> None:
    with lastword.open(tmp_path / "data", config=BUSY) as log:
        log.create_topic("kept", partitions=2)
        log.create_topic("words", partitions=2, config={"cleanup.policy": "compact"})
        with Load(log) as load:
            begun: list[dict[str, int]] = []
            for _ in range(3):
                load.wait_for_more()
                begun.append(dict(load.acknowledged))
                report = log.backup(tmp_path / "backups")
                assert report.problems == ()
        originals = {
            name: {(each.partition, each.offset): each for each in log.topic(name).read()}
            for name in log.topics()
        }
    backups = [each.id for each in lastword.backups(tmp_path / "backups")[0]]
    for index, (backup, acknowledged) in enumerate(zip(backups, begun, strict=True)):
        lastword.restore(tmp_path / "backups", tmp_path / f"r{index}", backup=backup)
        with lastword.open(tmp_path / f"r{index}", config=BUSY) as restored:
            kept = list(restored.topic("kept").read())
            assert set(values(kept)) >= set(range(acknowledged["kept"] + 1))
            for partition in (0, 1):
                own = values([each for each in kept if each.partition == partition])
                assert own == list(range(partition, 2 * len(own), 2))
            assert all(originals["kept"][each.partition, each.offset] == each for each in kept)
            state = restored.topic("words").state().to_pylist()
            assert len(state) == 50
            newest = {
                each["partition"]: int(each["value"]) for each in sorted(state, key=itemgetter("offset"))
            }
            assert max(newest.values()) >= acknowledged["words"]
            # Each key has its last word as of where its partition was cut.
            for each in state:
                number = int(each["value"])
                assert number % 50 == int(each["key"][1:]) and newest[each["partition"]] - number < 50
            assert restored.topic("kept").seal().problems == ()
            restored.compact(["words"], asked_for=True)
            restored.run_retention()
            assert restored.topic("words").state().to_pylist() == state


# ------------------------------------------------------------------------------------------- other places


def test_from_an_object_store_to_an_object_store_and_back(
    tmp_path: Path, clock: ManualClock, s3: S3Server
) -> None:
    config = {**INLINE_CONFIG, "catalog": s3.properties, "warehouse": f"s3://{s3.bucket}/lake"}
    to = f"s3://{s3.bucket}/backups/log"
    with open_log(tmp_path / "data", clock, config) as log:
        topic = log.create_topic("t", partitions=2)
        fill(topic, 0, 10)
        topic.seal()
        fill(topic, 10, 12, partition=1)
        first = log.backup(to)
        assert (first.copied_files, first.problems) == (1, ())
        clock.move(1000)
        topic.seal()
        second = log.backup(to, keep=1)
        assert (second.copied_files, second.reused_files, second.removed_backups) == (
            1,
            1,
            (first.backup.id,),
        )
    # To a folder of this machine, which needs no object store any more,
    lastword.restore(to, tmp_path / "local", properties=s3.properties, clock=clock)
    with open_log(tmp_path / "local", clock) as restored:
        assert sorted(values(restored.topic("t").read())) == list(range(12))
    # and to another place of the object store.
    elsewhere = {**config, "warehouse": f"s3://{s3.bucket}/restored"}
    lastword.restore(to, tmp_path / "remote", config=elsewhere, clock=clock)
    with open_log(tmp_path / "remote", clock, elsewhere) as restored:
        assert sorted(values(restored.topic("t").read())) == list(range(12))
        restored.delete_topic("t")
    with open_log(tmp_path / "data", clock, config) as log:
        assert sorted(values(log.topic("t").read())) == list(range(12))


def test_from_and_to_a_postgresql_catalog(tmp_path: Path, clock: ManualClock, cluster: Cluster) -> None:
    cluster.run("CREATE DATABASE one", "CREATE DATABASE two")

    def config(database: str) -> dict[str, object]:
        uri = f"postgresql+psycopg2://postgres@/{database}?host={cluster.folder}"
        return {
            **INLINE_CONFIG,
            "catalog": {"type": "sql", "uri": uri},
            "warehouse": str(tmp_path / database),
        }

    with open_log(tmp_path / "data", clock, config("one")) as log:
        topic = log.create_topic("t")
        fill(topic, 0, 10)
        topic.seal()
        fill(topic, 10, 12)
        # A topic of another folder on the same catalog is not this log's.
        with open_log(tmp_path / "other", clock, config("one")) as other:
            fill(other.create_topic("others"), 0, 1)
        report = log.backup(tmp_path / "backups")
        assert [each.info.name for each in report.backup.topics] == ["t"] and report.problems == ()
    lastword.restore(tmp_path / "backups", tmp_path / "inside", clock=clock)
    lastword.restore(tmp_path / "backups", tmp_path / "restored", config=config("two"), clock=clock)
    for name, own in (("inside", None), ("restored", config("two"))):
        with open_log(tmp_path / name, clock, own) as restored:
            [info] = restored.topic_infos()
            known = identity.load(tmp_path / name)
            assert info.owner is not None and known is not None and info.owner.folder_id == known.id
            assert values(restored.topic("t").read()) == list(range(12))
            fill(restored.topic("t"), 12, 13)
            restored.topic("t").seal()
            restored.delete_topic("t")
    with open_log(tmp_path / "data", clock, config("one")) as log:
        assert values(log.topic("t").read()) == list(range(12))


# ------------------------------------------------------------------------------------------------ sources


def test_a_file_source_goes_on_exactly_where_it_was(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(10)))
    source = {"s": {"connector": "file", "topic": "t", "config": {"path": str(lines), "format": "lines"}}}
    with lastword.open(tmp_path / "data", config=INLINE_CONFIG) as log, running(log, source) as sources:
        sources.wait(lambda: "t" in log.topics() and len(list(log.topic("t").read())) == 10)
        # The source is in the middle of its work while the backup is made.
        with lines.open("a") as file:
            file.writelines(f"{number}\n" for number in range(10, 5000))
        log.backup(tmp_path / "backups")
    lastword.restore(tmp_path / "backups", tmp_path / "restored")
    with (
        lastword.open(tmp_path / "restored", config=INLINE_CONFIG) as restored,
        running(restored, source) as again,
    ):
        again.wait(lambda: len(list(restored.topic("t").read())) >= 5000)
        assert values(restored.topic("t").read()) == list(range(5000))


def test_a_unit_of_a_source_that_a_kill_has_left_comes_along(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("0\n1\n2\n")
    source = {"s": {"connector": "file", "topic": "t", "config": {"path": str(lines), "format": "lines"}}}

    def run() -> None:
        with lastword.open(tmp_path / "data", config=INLINE_CONFIG) as log, running(log, source) as sources:
            sources.wait(lambda: False)

    # Its position says that the records are in the log, and they are only staged.
    assert killed_at("connect.journaled", run)
    with lastword.open(tmp_path / "data", config=INLINE_CONFIG, read_only=True) as log:
        assert list(log.topic("t").read()) == []
        log.backup(tmp_path / "backups")
    lastword.restore(tmp_path / "backups", tmp_path / "restored")
    with (
        lastword.open(tmp_path / "restored", config=INLINE_CONFIG) as restored,
        running(restored, source) as again,
    ):
        again.wait(lambda: len(list(restored.topic("t").read())) >= 3)
        assert values(restored.topic("t").read()) == [0, 1, 2]


def test_a_postgresql_source_notices_that_its_slot_is_ahead(tmp_path: Path, cluster: Cluster) -> None:
    cluster.run("CREATE TABLE ahead (id int PRIMARY KEY, v text)", "INSERT INTO ahead VALUES (1, 'one')")
    source = {"pg": postgres_source(cluster, "ahead", tables="public.ahead")}
    with lastword.open(tmp_path / "data", config=INLINE_CONFIG) as log:
        with running(log, source) as sources:
            sources.wait_for_records("ahead", 1)
            cluster.run("INSERT INTO ahead VALUES (2, 'two')")
            sources.wait_for_records("ahead", 2)
        log.backup(tmp_path / "backups")
        with running(log, source) as sources:
            cluster.run("INSERT INTO ahead VALUES (3, 'three')")
            sources.wait_for_records("ahead", 3)
        # The original goes on as if nothing had been.
        with running(log, source) as sources:
            cluster.run("INSERT INTO ahead VALUES (4, 'four')")
            sources.wait_for_records("ahead", 4)
    lastword.restore(tmp_path / "backups", tmp_path / "restored")
    with lastword.open(tmp_path / "restored", config=INLINE_CONFIG) as restored:
        with running(restored, source) as sources:
            said = sources.wait_for_error("was restored from the backup")
            assert "`lastword connect pause pg`, `reset pg` and `resume pg`" in said
            assert len(sources.records("ahead")) == 2
        states.reset(restored.path, "pg")
        with running(restored, source) as sources:
            found = sources.wait_for_records("ahead", 6)
            assert {key["id"] for key, _ in found} == {1, 2, 3, 4}


def test_a_postgresql_source_whose_slot_has_not_moved_goes_on(tmp_path: Path, cluster: Cluster) -> None:
    cluster.run("CREATE TABLE level (id int PRIMARY KEY)", "INSERT INTO level VALUES (1)")
    source = {"level": postgres_source(cluster, "level", tables="public.level")}
    with lastword.open(tmp_path / "data", config=INLINE_CONFIG) as log:
        with running(log, source) as sources:
            sources.wait_for_records("level", 1)
            cluster.run("INSERT INTO level VALUES (2)")
            sources.wait_for_records("level", 2)
        log.backup(tmp_path / "backups")
    cluster.run("INSERT INTO level VALUES (3)")
    lastword.restore(tmp_path / "backups", tmp_path / "restored")
    with lastword.open(tmp_path / "restored", config=INLINE_CONFIG) as restored:
        for count in (3, 4):
            with running(restored, source) as sources:
                assert len(sources.wait_for_records("level", count)) == count
                cluster.run(f"INSERT INTO level VALUES ({count + 1})")
                assert len(sources.wait_for_records("level", count + 1)) == count + 1
