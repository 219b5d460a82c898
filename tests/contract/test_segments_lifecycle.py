"""The end of topics on an object store and with a catalog on PostgreSQL: the same as on one disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import uuid4

import pyarrow.fs as pafs
import pytest
from tests.support.clock import ManualClock
from tests.support.logs import (
    fill,
    no_hook,  # noqa: F401 - a fixture that every test uses
    open_log,
    values,
)
from tests.support.s3 import S3Server

from lastword.errors import CorruptError, InvalidError, NotOwnerError, StorageError
from lastword.folder import steps
from lastword.log import Log
from lastword.operations import topics
from lastword.segments.table import SegmentTable

INLINE = {"compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory"}


class Elsewhere:
    """Where sealed segments are: the settings for it, and a look at the files."""

    def __init__(self, config: Mapping[str, object], files: pafs.FileSystem, root: str) -> None:
        self.config = {**INLINE, **config}
        self.files = files
        self.root = root

    def all_files(self) -> list[str]:
        found = self.files.get_file_info(pafs.FileSelector(self.root, allow_not_found=True, recursive=True))
        return sorted(info.path for info in found if info.type == pafs.FileType.File)

    def damage(self, log: Log, name: str) -> None:
        """Cut the metadata file of a topic's table short."""
        path = log.topic(name).table._table.metadata_location.split("://", 1)[1]  # type: ignore[attr-defined]
        with self.files.open_output_stream(path) as stream:
            stream.write(b"{")


@pytest.fixture(params=["s3", "postgres"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Elsewhere:
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        root = f"{server.bucket}/{uuid4().hex}"
        return Elsewhere(
            {"warehouse": f"s3://{root}", "catalog": server.properties}, server.file_system(), root
        )
    uri = request.getfixturevalue("postgres_uri")
    return Elsewhere({"catalog": {"uri": uri}}, pafs.LocalFileSystem(), str(tmp_path / "d" / "warehouse"))


@pytest.fixture
def topic_name() -> str:
    """A name of its own: the database outlives a test."""
    return f"t{uuid4().hex}"


def in_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_created_again_while_the_old_files_go(
    elsewhere: Elsewhere, tmp_path: Path, clock: ManualClock, topic_name: str
) -> None:
    reached, go = threading.Event(), threading.Event()

    def wait(step: str) -> None:
        if step == "topic.deletion.wal_removed":
            steps.install(None)
            reached.set()
            assert go.wait(180)

    with open_log(tmp_path / "d", clock, elsewhere.config) as log:
        old = log.create_topic(topic_name)
        fill(old, 0, 2)
        old.seal()
        steps.install(wait)
        deleting = in_thread(lambda: log.delete_topic(topic_name))
        assert reached.wait(180)
        new = log.create_topic(topic_name)
        fill(new, 5, 7)
        new.seal()
        go.set()
        deleting.join()
        assert values(new.read()) == [5, 6]
        assert [path for path in elsewhere.all_files() if old.id.hex in path] == []
        log.delete_topic(topic_name)
        assert [path for path in elsewhere.all_files() if new.id.hex in path] == []


def test_a_deletion_that_fails_leaves_the_topic_whole(
    elsewhere: Elsewhere,
    tmp_path: Path,
    clock: ManualClock,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_log(tmp_path / "d", clock, elsewhere.config) as log:
        topic = log.create_topic(topic_name)
        fill(topic, 0, 2)
        alter = SegmentTable.alter

        def failing(self: SegmentTable, base: object, **changes: object) -> object:
            if changes.get("deleted"):
                raise StorageError("the store does not answer")
            return alter(self, base, **changes)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(SegmentTable, "alter", failing)
            with pytest.raises(StorageError):
                log.delete_topic(topic_name)
        log.run_retention()
        fill(topic, 2, 3)
        topic.seal()
        assert values(log.topic(topic_name).read()) == [0, 1, 2]
        log.delete_topic(topic_name)


def test_a_table_that_can_not_be_read_is_repaired_and_deleted(
    elsewhere: Elsewhere, tmp_path: Path, clock: ManualClock, topic_name: str
) -> None:
    with open_log(tmp_path / "d", clock, elsewhere.config) as log:
        topic = log.create_topic(topic_name)
        fill(topic, 0, 2)
        topic.seal()
        fill(topic, 2, 3)
        topic.seal()
        elsewhere.damage(log, topic_name)
    with open_log(tmp_path / "d", clock, elsewhere.config) as log:
        with pytest.raises(CorruptError):
            log.topic(topic_name)
        listed = {each["name"]: each["state"] for each in topics.list_topics(log)}
        assert listed[topic_name] == "unreadable"
        log.repair_topic(topic_name)
        assert values(log.topic(topic_name).read()) == [0, 1, 2]
        log.topic(topic_name).seal()
        elsewhere.damage(log, topic_name)
    with open_log(tmp_path / "d", clock, elsewhere.config) as log:
        log.delete_topic(topic_name)
        assert topic_name not in log.topics()
        assert [path for path in elsewhere.all_files() if topic.id.hex in path] == []


def test_what_a_job_writes_for_a_topic_that_goes_meanwhile_goes_too(
    elsewhere: Elsewhere, tmp_path: Path, clock: ManualClock, topic_name: str
) -> None:
    with (
        open_log(tmp_path / "d", clock, elsewhere.config) as log,
        open_log(tmp_path / "d", clock, elsewhere.config, maintain_only=True) as worker,
    ):
        topic = log.create_topic(topic_name, config={"cleanup.policy": "compact"})
        for _ in range(2):
            fill(topic, 0, 3)
            topic.seal()

        def delete(step: str) -> None:
            if step == "segment.file.opening":
                steps.install(None)
                log.delete_topic(topic_name)

        steps.install(delete)
        worker.compact([topic_name], asked_for=True)
        assert list((log.path / "deleting").iterdir()) != []
        worker.run_retention(steps=["collect"])
        assert [path for path in elsewhere.all_files() if topic.id.hex in path] == []
        assert list((log.path / "deleting").iterdir()) == []


def test_a_table_that_can_not_be_read_is_left_to_its_owner(
    postgres_uri: str, tmp_path: Path, clock: ManualClock, topic_name: str
) -> None:
    warehouse = str(tmp_path / "warehouse")
    elsewhere = Elsewhere(
        {"catalog": {"uri": postgres_uri}, "warehouse": warehouse}, pafs.LocalFileSystem(), warehouse
    )
    config = elsewhere.config
    with open_log(tmp_path / "d", clock, config) as log:
        topic = log.create_topic(topic_name)
        fill(topic, 0, 2)
        topic.seal()
        elsewhere.damage(log, topic_name)
    with open_log(tmp_path / "other", clock, config) as other:
        with pytest.raises(NotOwnerError):
            other.delete_topic(topic_name)
        assert "belongs to" in str(other.plan_repair(topic_name).states[0].problem)
        with pytest.raises(InvalidError, match="No older state"):
            other.repair_topic(topic_name)
        assert topic_name in other.topics()
        assert topic_name not in other.own_topics()
    with open_log(tmp_path / "d", clock, config) as log:
        log.repair_topic(topic_name)
        assert values(log.topic(topic_name).read()) == [0, 1]
        fill(log.topic(topic_name), 2, 3)
        log.topic(topic_name).seal()
        log.delete_topic(topic_name)
