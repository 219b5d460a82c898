"""A data folder that was copied or moved: who may open it, and what a relocation makes of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.support.broker import INLINE
from tests.support.forks import killed_at
from tests.support.logs import fill, values

import lastword
from lastword.errors import CorruptError, ForeignFolderError, InvalidError, LockedError
from lastword.folder import identity
from lastword.maintenance.relocating import relocate

CONFIG: dict[str, object] = {"compaction.service.factory": INLINE}
STEPS = (
    "relocate.noted",
    "relocate.manifests.written",
    "relocate.metadata.written",
    "relocate.pointers.moved",
    "relocate.rewritten",
    "relocate.done",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a compacted topic, sealed in part, and one in a namespace that is sealed only."""
    folder = tmp_path / "data"
    with lastword.open(folder, config=CONFIG) as log:
        users = log.create_topic("users", partitions=2, config={"cleanup.policy": "compact"})
        fill(users, 0, 5)
        fill(users, 0, 5, partition=1)
        log.compact(["users"], seal=True, force=True)
        fill(users, 5, 8)
        orders = log.create_topic("shop.orders")
        fill(orders, 0, 4)
        orders.seal()
    return folder


def copy_of(data: Path, name: str = "copy") -> Path:
    return Path(shutil.copytree(data, data.with_name(name), symlinks=True))


def contents(folder: Path) -> dict[str, list[int]]:
    with lastword.open(folder, config=CONFIG, read_only=True) as log:
        return {name: values(log.topic(name).read(partition=0)) for name in log.topics()}


EXPECTED = {"shop.orders": [0, 1, 2, 3], "users": [0, 1, 2, 3, 4, 5, 6, 7]}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize("options", [{}, {"read_only": True}, {"maintain_only": True}])
def test_a_copy_is_refused_by_the_name_of_its_original(data: Path, options: dict[str, bool]) -> None:
    copy = copy_of(data)
    before = tree(copy)

    with pytest.raises(
        ForeignFolderError, match=f"{copy} is a copy of {data}, .* `lastword relocate --data {copy}`"
    ):
        lastword.open(copy, config=CONFIG, **options)

    assert {**tree(copy), "locks/writer.lock": b""} == {**before, "locks/writer.lock": b""}
    assert contents(data) == EXPECTED


def test_a_copy_becomes_a_folder_of_its_own(data: Path) -> None:
    copy = copy_of(data)
    done = relocate(copy, config=CONFIG)

    assert (done.standing, done.original, done.topics) == ("copy", str(data), ("shop.orders", "users"))
    assert identity.load(copy).id == done.id != identity.load(data).id
    assert contents(copy) == EXPECTED == contents(data)

    untouched = tree(data)
    with lastword.open(copy, config=CONFIG) as log:
        log.delete_topic("shop.orders")
        users = log.topic("users")
        fill(users, 100, 103)
        log.compact(["users"], seal=True, force=True)
        log.run_retention()
    assert contents(copy) == {"users": [*EXPECTED["users"], 100, 101, 102]}
    assert tree(data) == untouched
    assert contents(data) == EXPECTED


def test_the_original_may_go_on_meanwhile(data: Path) -> None:
    """A folder is copied under its running writer; its locks and leases come along and say nothing of the copy."""
    with lastword.open(data, config=CONFIG) as log:
        lease = log._leases.hold(topic_id="7" * 32, job="replay", snapshot_id=1)
        copy = copy_of(data)
        relocate(copy, config=CONFIG)
        assert not (copy / "leases").exists()
        with lastword.open(copy, config=CONFIG, maintain_only=True) as copied:
            # Not the original's writer is asked to roll.
            assert copied.topic("users").seal().records == 3
        fill(log.topic("users"), 8, 9)
        assert log.topic("users").seal().records == 4
        lease.release()
    assert contents(data)["users"] == [*EXPECTED["users"], 8]
    assert contents(copy) == EXPECTED


def test_a_moved_folder_is_relocated_when_it_is_opened_for_writing(data: Path) -> None:
    known = identity.load(data)
    moved = data.rename(data.with_name("moved"))

    for options in ({"read_only": True}, {"maintain_only": True}):
        with pytest.raises(ForeignFolderError, match=f"moved here from {data}.*open it once for writing"):
            lastword.open(moved, config=CONFIG, **options)
    with lastword.open(moved, config=CONFIG) as log:
        assert log.topics() == ["shop.orders", "users"]

    assert identity.load(moved).id == known.id
    assert identity.load(moved).path == str(moved)
    assert contents(moved) == EXPECTED
    # And back again.
    moved.rename(data)
    relocate(data, config=CONFIG)
    assert contents(data) == EXPECTED


def test_a_copy_whose_original_is_gone_was_moved(data: Path) -> None:
    copy = copy_of(data)
    shutil.rmtree(data)
    with lastword.open(copy, config=CONFIG) as log:
        assert values(log.topic("users").read(partition=0)) == EXPECTED["users"]


def test_another_name_of_the_same_place_is_the_same_place(data: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(data)
    assert contents(link) == EXPECTED
    with lastword.open(link, config=CONFIG) as log:
        fill(log.topic("users"), 8, 9)
        fill(log.create_topic("by.link"), 0, 2)
        log.topic("by.link").seal()
    assert contents(data) == {**EXPECTED, "users": [*range(9)], "by.link": [0, 1]}
    # A table that was created by the other name is found as well when the folder moves.
    moved = data.rename(tmp_path / "moved")
    relocate(moved, config=CONFIG)
    link.unlink()
    assert contents(moved) == {**EXPECTED, "users": [*range(9)], "by.link": [0, 1]}


def test_a_folder_that_is_where_it_belongs_is_left_as_it_is(data: Path) -> None:
    before = tree(data)
    assert relocate(data, config=CONFIG).standing == "home"
    assert {**tree(data), **{key: b"" for key in tree(data) if key.startswith("locks/")}} == {
        **before,
        **{key: b"" for key in tree(data) if key.startswith("locks/")},
    }


def test_a_copy_that_is_in_use_is_not_relocated(data: Path) -> None:
    copy = copy_of(data)
    relocate(copy, config=CONFIG)
    with lastword.open(copy, config=CONFIG), pytest.raises(LockedError):
        relocate(copy, config=CONFIG)


def check_it_goes_on(place: Path) -> None:
    assert contents(place) == EXPECTED
    with lastword.open(place, config=CONFIG) as log:
        fill(log.topic("users"), 8, 9)
        assert log.topic("users").seal().problems == ()


def test_a_relocation_of_a_copy_that_was_killed_goes_on(data: Path) -> None:
    for number, step in enumerate(STEPS):
        copy = copy_of(data, f"copy-{number}")
        assert killed_at(step, lambda copy=copy: relocate(copy, config=CONFIG))
        noted = identity.load(copy)
        if step != "relocate.done":
            with pytest.raises(ForeignFolderError):
                lastword.open(copy, config=CONFIG)

        done = relocate(copy, config=CONFIG)

        assert done.id == (noted.becoming or noted.id)
        check_it_goes_on(copy)
    assert contents(data) == EXPECTED


def test_a_moved_folder_whose_relocation_was_killed_is_opened_for_writing(data: Path) -> None:
    moved = data.rename(data.with_name("moved"))
    for step in STEPS:
        assert killed_at(step, lambda: lastword.open(moved, config=CONFIG))
    check_it_goes_on(moved)


def test_two_copies_of_a_copy_that_is_being_relocated_get_ids_of_their_own(data: Path) -> None:
    first = copy_of(data)
    assert killed_at("relocate.noted", lambda: relocate(first, config=CONFIG))
    second = copy_of(first, "second")
    assert relocate(first, config=CONFIG).id != relocate(second, config=CONFIG).id


def test_a_copy_of_a_copy(data: Path) -> None:
    first = copy_of(data)
    relocate(first, config=CONFIG)
    second = copy_of(first, "second")
    with pytest.raises(ForeignFolderError, match=f"copy of {first}"):
        lastword.open(second, config=CONFIG)
    relocate(second, config=CONFIG)
    assert contents(second) == EXPECTED


def without_identity(data: Path) -> Path:
    """Its tables alone tell who it is. Those of the first version don't even name an owner: test_ownership.py."""
    (data / "IDENTITY").unlink()
    return data


def test_an_identity_that_was_lost_is_found_again(data: Path) -> None:
    before = identity.load(data)
    check_it_goes_on(without_identity(data))
    assert identity.load(data).id == before.id


def test_a_folder_of_the_first_version_gets_an_identity(data: Path) -> None:
    without_identity(data)
    assert contents(data) == EXPECTED
    assert identity.load(data) is None
    lastword.open(data, config=CONFIG).close()
    found = identity.load(data)
    assert found is not None and found.path == str(data)
    lastword.open(data, config=CONFIG).close()
    assert identity.load(data) == found


def test_a_copy_of_a_folder_of_the_first_version_is_known_by_its_tables(data: Path) -> None:
    copy = copy_of(without_identity(data))
    for options in ({}, {"read_only": True}):
        with pytest.raises(ForeignFolderError, match=f"copy of {data}"):
            lastword.open(copy, config=CONFIG, **options)
    # Also when the original has got its identity meanwhile.
    lastword.open(data, config=CONFIG).close()
    with pytest.raises(ForeignFolderError, match=f"copy of {data}"):
        lastword.open(copy, config=CONFIG)
    relocate(copy, config=CONFIG)
    assert contents(copy) == EXPECTED == contents(data)


def test_a_moved_folder_of_the_first_version(data: Path) -> None:
    moved = without_identity(data).rename(data.with_name("moved"))
    for step in STEPS:
        assert killed_at(step, lambda: lastword.open(moved, config=CONFIG))
    check_it_goes_on(moved)


def test_a_damaged_identity_says_what_to_do(data: Path) -> None:
    (data / "IDENTITY").write_text("{")
    with pytest.raises(CorruptError, match=r"IDENTITY is damaged.*remove the file"):
        lastword.open(data, config=CONFIG)


def test_an_original_that_can_not_be_looked_at_counts_as_there(data: Path) -> None:
    copy = copy_of(data)
    (data / "IDENTITY").write_text("{")
    with pytest.raises(ForeignFolderError, match=f"copy of {data}"):
        lastword.open(copy, config=CONFIG)


def test_a_folder_may_be_made_its_own_though_the_original_is_not_to_be_seen(data: Path) -> None:
    """As a cloned disk on another host: it is at the same place, with the same id."""
    before = identity.load(data)
    assert killed_at("relocate.pointers.moved", lambda: relocate(data, config=CONFIG, as_copy=True))
    with lastword.open(data, config=CONFIG) as log:
        fill(log.topic("users"), 8, 9)
        assert log.topic("users").seal().problems == ()
    assert identity.load(data).id != before.id
    assert contents(data)["users"] == [*range(9)]


def test_a_deletion_that_was_noted_in_the_original_removes_the_files_of_the_copy_alone(data: Path) -> None:
    """The note may name the place of the files: here because the folder had another name when it was filled."""
    link = data.with_name("link")
    link.symlink_to(data)
    with lastword.open(link, config=CONFIG) as log:
        fill(log.create_topic("by.link"), 0, 2)
        log.topic("by.link").seal()

    def delete() -> None:
        with lastword.open(data, config=CONFIG) as log:
            log.delete_topic("by.link")

    assert killed_at("topic.deletion.dropped", delete)
    assert "file://" in next((data / "deleting").iterdir()).read_text()
    copy = copy_of(data)
    before = tree(data)

    relocate(copy, config=CONFIG)
    lastword.open(copy, config=CONFIG).close()

    assert tree(data) == before
    assert contents(copy) == EXPECTED
    assert not (copy / "warehouse" / "by").exists()


# ------------------------------------------------------------------------- catalog or warehouse elsewhere


def outside(tmp_path: Path, *, catalog: bool, warehouse: bool) -> dict[str, object]:
    config = dict(CONFIG)
    if catalog:
        config["catalog"] = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    if warehouse:
        config["warehouse"] = str(tmp_path / "warehouse")
    return config


@pytest.mark.parametrize(("catalog", "warehouse"), [(True, True), (True, False), (False, True)])
def test_moved_with_something_outside_it_is_relocated_only_on_request(
    tmp_path: Path, catalog: bool, warehouse: bool
) -> None:
    config = outside(tmp_path, catalog=catalog, warehouse=warehouse)
    with lastword.open(tmp_path / "data", config=config) as log:
        fill(log.create_topic("t"), 0, 5)
        log.topic("t").seal()
        fill(log.topic("t"), 5, 7)
    moved = (tmp_path / "data").rename(tmp_path / "moved")

    with pytest.raises(ForeignFolderError, match=r"is outside of it.*lastword relocate --data"):
        lastword.open(moved, config=config)
    done = relocate(moved, config=config)

    assert done.topics == (() if warehouse else ("t",))
    with lastword.open(moved, config=config) as log:
        assert values(log.topic("t").read()) == [*range(7)]
        fill(log.topic("t"), 7, 8)
        assert log.topic("t").seal().problems == ()


def test_a_copy_whose_files_lie_outside_can_not_be_made_its_own(tmp_path: Path) -> None:
    config = outside(tmp_path, catalog=False, warehouse=True)
    lastword.open(tmp_path / "data", config=config).close()
    copy = copy_of(tmp_path / "data")
    with pytest.raises(InvalidError, match=r"warehouse.*outside of it.*Restore a backup"):
        relocate(copy, config=config)


def test_the_identity_is_plain_json(data: Path) -> None:
    found = json.loads((data / "IDENTITY").read_bytes())
    assert found["path"] == str(data)
    assert len(found["id"]) == 32
    assert (data / "IDENTITY").stat().st_mode & 0o777 == 0o644
