"""Taking topics over from another data folder, and rescuing what it had not sealed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.forks import killed_at
from tests.support.logs import fill, takes_appends, values
from tests.support.segments import outside_catalog
from tests.support.waiting import wait_until

import lastword
from lastword.clock import SystemClock
from lastword.config import BrokerConfig
from lastword.errors import InvalidError, NotOwnerError, UnavailableError, UnknownTopicError
from lastword.maintenance.rescue import local_records
from lastword.maintenance.takeover import LEADER_EPOCHS
from lastword.segments.storage import Storage

Config = dict[str, object]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return outside_catalog(tmp_path)


@pytest.fixture(params=["sqlite", "postgres and s3"])
def any_config(request: pytest.FixtureRequest, config: Config) -> Config:
    if request.param == "sqlite":
        return config
    s3 = request.getfixturevalue("one_s3_server").new_bucket()
    uri = request.getfixturevalue("one_cluster").new_database()
    return {
        **config,
        "catalog": {"type": "sql", "uri": uri, **s3.properties},
        "warehouse": f"s3://{s3.bucket}/shared",
    }


def rescued(folder: Path, config: Config, name: str = "t", from_offset: int | None = None) -> list[int]:
    storage = Storage.of(folder, BrokerConfig.from_mapping(config, where="config"))
    wals = local_records(storage, name, SystemClock(), from_offset=from_offset)
    return values([record for wal in wals for record in wal.read()])


def test_the_old_owner_stops_and_what_it_had_not_sealed_is_rescued(
    tmp_path: Path, any_config: Config
) -> None:
    config = any_config
    with lastword.open(tmp_path / "one", config=config) as one:
        old = one.create_topic("t", partitions=2)
        fill(old, 0, 3)
        old.seal()
        fill(old, 3, 6)
        old_epoch = old.describe().partitions[0].leader_epoch
        with lastword.open(tmp_path / "two", config=config) as two:
            done = two.take_over("t")

            assert done is not None and done.before is not None
            assert (done.before.path, done.before.epoch, done.after.epoch) == (str(tmp_path / "one"), 1, 2)
            assert done.sealed_ends == (3, 0)
            new = two.topic("t")
            # It goes on at the sealed end, under a leader epoch that the old owner never had.
            assert new.append("k", "100", partition=0).offset == 3
            assert new.describe().partitions[0].leader_epoch > old_epoch + LEADER_EPOCHS
            assert two.take_over("t") is None

            # No commit of the old owner gets through, at once, and soon it acknowledges nothing.
            with pytest.raises(NotOwnerError, match=f"'t' belongs to the data folder .*{tmp_path}/two"):
                old.delete_records({0: 1})
            with pytest.raises(NotOwnerError):
                old.seal()
            wait_until(lambda: not takes_appends(old))
            with pytest.raises(NotOwnerError, match=f"'t' belongs to the data folder .*{tmp_path}/two"):
                fill(old, 6, 7)
            one.run_retention()
            assert new.seal().records == 1
            one.run_retention()
            # The old one reads what the new one has sealed, and not its own other history.
            wait_until(lambda: one.topic("t").foreign is not None)
            assert values(one.topic("t").read()) == [0, 1, 2, 100]
            assert rescued(tmp_path / "one", config) == [3, 4, 5]
            assert rescued(tmp_path / "two", config) == []
            fill(new, 101, 102)
            assert rescued(tmp_path / "two", config) == [101]
            assert values(new.read()) == [0, 1, 2, 100, 101]
    # Also when it is opened again.
    with lastword.open(tmp_path / "one", config=config) as one:
        with pytest.raises(NotOwnerError):
            fill(one.topic("t"), 6, 7)
        assert rescued(tmp_path / "one", config) == [3, 4, 5]
        assert rescued(tmp_path / "one", config, from_offset=4) == [4, 5]


def test_what_was_planned_before_is_not_committed_after(tmp_path: Path, config: Config) -> None:
    """The old owner has looked at the table, planned, written its files, and is about to commit."""
    with lastword.open(tmp_path / "one", config=config) as one:
        topic = one.create_topic("t")
        fill(topic, 0, 3)
        table = one._catalog.load("t")
        base = table.snapshot()
        with lastword.open(tmp_path / "two", config=config) as two:
            two.take_over("t")
        with pytest.raises(NotOwnerError):
            table.append(base, [], {}, operation="seal")
        with pytest.raises(NotOwnerError):
            table.expire(retention_ms=None)
        assert one._catalog.load("t").snapshot().operation == "takeover"


def test_a_commit_that_was_on_its_way_fails(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner is taken over between its last look and the catalog's."""
    from lastword.folder import steps

    with (
        lastword.open(tmp_path / "one", config=config) as one,
        lastword.open(tmp_path / "two", config=config) as two,
    ):
        topic = one.create_topic("t")
        fill(topic, 0, 3)

        def hook(step: str) -> None:
            if step == "commit.before":
                steps.install(None)
                two.take_over("t")

        steps.install(hook)
        try:
            report = topic.seal()
        except NotOwnerError:
            report = None
        finally:
            steps.install(None)
        assert report is None or report.problems
        assert values(two.topic("t").read()) == []
        assert rescued(tmp_path / "one", config) == [0, 1, 2]


def test_a_topic_can_be_taken_back_and_both_histories_stay_to_be_had(tmp_path: Path, config: Config) -> None:
    with lastword.open(tmp_path / "one", config=config) as one:
        fill(one.create_topic("t"), 0, 2)
        one.topic("t").seal()
        fill(one.topic("t"), 2, 4)
    with lastword.open(tmp_path / "two", config=config) as two:
        two.take_over("t")
        fill(two.topic("t"), 100, 103)
        two.topic("t").seal()
        fill(two.topic("t"), 103, 104)
    with lastword.open(tmp_path / "one", config=config) as one:
        done = one.take_over("t")
        assert done is not None and done.set_aside is not None
        assert done.after.epoch == 3
        assert values(one.topic("t").read()) == [0, 1, 100, 101, 102]
        fill(one.topic("t"), 5, 6)
        assert values(one.topic("t").read()) == [0, 1, 100, 101, 102, 5]
        assert rescued(tmp_path / "one", config) == [5, 2, 3]
        assert rescued(tmp_path / "two", config) == [103]
        assert one.topic("t").seal().records == 1
        # An erasure says what it does not reach.
        assert [done.set_aside in each for each in one.erase("t", [b"k2"]).left] == [True]
        # With the topic goes its WAL; what was set aside stays for people.
        one.delete_topic("t")
        assert Path(done.set_aside).exists()


@pytest.mark.parametrize("step", ["takeover.wal.set_aside", "own.noted", "commit.before", "commit.done"])
def test_killed_on_the_way_the_topic_is_the_ones_or_the_others(
    tmp_path: Path, config: Config, step: str
) -> None:
    with lastword.open(tmp_path / "one", config=config) as one:
        fill(one.create_topic("t"), 0, 2)
        one.topic("t").seal()
    with lastword.open(tmp_path / "two", config=config) as two:
        two.take_over("t")
        fill(two.topic("t"), 2, 3)
        two.topic("t").seal()

    def work() -> None:
        with lastword.open(tmp_path / "one", config=config) as one:
            one.take_over("t")

    assert killed_at(step, work)
    if step != "commit.done":
        with lastword.open(tmp_path / "two", config=config) as two:
            fill(two.topic("t"), 3, 4)
            two.topic("t").seal()
    with lastword.open(tmp_path / "one", config=config) as one:
        one.take_over("t")
        fill(one.topic("t"), 7, 8)
        expected = [0, 1, 2, 7] if step == "commit.done" else [0, 1, 2, 3, 7]
        assert values(one.topic("t").read()) == expected
        assert one.topic("t").seal().problems == ()


def test_files_outside_of_the_own_warehouse_are_not_taken_over(tmp_path: Path, config: Config) -> None:
    inside = {key: value for key, value in config.items() if key != "warehouse"}
    with lastword.open(tmp_path / "one", config=inside) as one:
        one.create_topic("t")
    with lastword.open(tmp_path / "two", config=inside) as two:
        with pytest.raises(InvalidError, match=r"outside of this folder's warehouse.*Restore a backup"):
            two.take_over("t")
        with pytest.raises(NotOwnerError):
            two.delete_topic("t")


def test_records_are_rescued_where_no_catalog_can_be_reached(tmp_path: Path, config: Config) -> None:
    with lastword.open(tmp_path / "one", config=config) as one:
        fill(one.create_topic("t"), 0, 3)
    away = {**config, "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path}/no/such/folder/catalog.db"}}
    with pytest.raises(UnavailableError, match="`--from-offset 0` exports whatever"):
        rescued(tmp_path / "one", away)
    assert rescued(tmp_path / "one", away, from_offset=0) == [0, 1, 2]
    with pytest.raises(UnknownTopicError):
        rescued(tmp_path / "one", away, "unknown", from_offset=0)


def test_what_the_old_owner_had_not_sealed_is_not_taken_for_sealed_by_the_new_one(
    tmp_path: Path, config: Config
) -> None:
    with (
        lastword.open(tmp_path / "one", config=config) as one,
        lastword.open(tmp_path / "two", config=config) as two,
    ):
        # It does not know of the loss yet.
        one._writer.confirmer.close()
        topic = one.create_topic("t")
        fill(topic, 0, 3)
        topic.roll(due_only=False)
        two.take_over("t")
        fill(two.topic("t"), 10, 20)
        two.topic("t").seal()
        report = one.run_retention(topics=["t"], steps=["delete"])
        assert not report.wal.deletions
        assert "belongs to" in report.problems[0][1]
    assert rescued(tmp_path / "one", config) == [0, 1, 2]
