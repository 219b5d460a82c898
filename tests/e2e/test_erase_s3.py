"""Erasure and collection where the sealed files are objects: a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from tests.support.clock import HOUR_MS, ManualClock
from tests.support.compacted import INLINE_CONFIG
from tests.support.s3 import S3Server

import lastword
from lastword.log import Log


@pytest.fixture
def log(tmp_path: Path, s3: S3Server) -> Iterator[Log]:
    config = {
        **INLINE_CONFIG,
        "warehouse": f"s3://{s3.bucket}/{tmp_path.name}",
        "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", **s3.properties},
    }
    with lastword.open(tmp_path / "data", config=config, clock=ManualClock()) as opened:
        topic = opened.create_topic("users", config={"cleanup.policy": "compact"})
        topic.append("alice", "1")
        topic.append("bob", "1")
        topic.seal()
        yield opened


def keys_of(s3: S3Server, path: Path) -> list[set[bytes]]:
    """The keys in each segment file of a warehouse."""
    selector = pafs.FileSelector(f"{s3.bucket}/{path.name}", recursive=True)
    files = [each.path for each in s3.file_system().get_file_info(selector) if each.path.endswith(".parquet")]
    return [
        set(pq.read_table(each, columns=["key"], filesystem=s3.file_system())["key"].to_pylist())
        for each in files
    ]


def test_no_object_has_the_key_when_it_is_done(log: Log, s3: S3Server, tmp_path: Path) -> None:
    other = load_catalog("lastword", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", **s3.properties)
    table = other.load_table(("default", "users"))
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "month-end").commit()
    assert isinstance(log.clock, ManualClock)
    log.clock.move(-10 * HOUR_MS)
    (left,) = log.erase("users", [b"alice"]).left
    assert "tag 'month-end'" in left
    table.refresh()
    table.manage_snapshots().remove_tag("month-end").commit()
    other.close()
    assert log.finish_erasures() == []
    assert keys_of(s3, tmp_path) == [{b"bob"}]


def test_a_superseded_object_outlives_its_snapshot_by_the_grace(
    log: Log, s3: S3Server, tmp_path: Path
) -> None:
    assert isinstance(log.clock, ManualClock)
    log.clock.move(2 * HOUR_MS)
    log.topic("users").append("alice", "2")
    log.compact(asked_for=True, seal=True)
    for files in (3, 3, 1):
        log.run_retention()
        assert len(keys_of(s3, tmp_path)) == files
        log.clock.move(HOUR_MS)
