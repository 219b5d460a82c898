"""Leases: who is at work, until when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.clock import ManualClock

from lastword.errors import LeaseLapsedError, StorageError
from lastword.folder import leases
from lastword.folder.leases import LeaseKeeper, live_leases

TTL_MS = 60_000


@pytest.fixture
def keeper(tmp_path: Path, clock: ManualClock) -> Iterator[LeaseKeeper]:
    made = LeaseKeeper(tmp_path, clock, TTL_MS)
    yield made
    made.close()


def ids(folder: Path, clock: ManualClock) -> set[str]:
    return {each.id for each in live_leases(folder, clock.now_ms())}


def test_a_lease_is_there_while_it_is_held(tmp_path: Path, clock: ManualClock, keeper: LeaseKeeper) -> None:
    assert ids(tmp_path, clock) == set()
    with keeper.hold(topic_id="t", job="replay", snapshot_id=5) as held:
        (lease,) = live_leases(tmp_path, clock.now_ms())
        assert (lease.id, lease.topic_id, lease.job, lease.snapshot_id) == (held.id, "t", "replay", 5)
        assert lease.expires_ms == clock.now_ms() + TTL_MS
    assert ids(tmp_path, clock) == set()


def test_it_ends_by_itself_when_nobody_renews_it(
    tmp_path: Path, clock: ManualClock, keeper: LeaseKeeper
) -> None:
    held = keeper.hold(topic_id="t", job="seal")
    clock.move(TTL_MS - 1)
    assert ids(tmp_path, clock) == {held.id}
    held.check()
    clock.move(1)
    assert ids(tmp_path, clock) == set()
    with pytest.raises(LeaseLapsedError, match="Nothing was committed"):
        held.check()


def test_renewing_moves_its_end(tmp_path: Path, clock: ManualClock, keeper: LeaseKeeper) -> None:
    held = keeper.hold(topic_id="t", job="seal")
    for _ in range(4):
        clock.move(TTL_MS - 1)
        held.renew()
    held.check()
    assert ids(tmp_path, clock) == {held.id}


def test_a_job_that_was_stopped_too_long_can_not_renew_its_way_back(
    tmp_path: Path, clock: ManualClock, keeper: LeaseKeeper
) -> None:
    held = keeper.hold(topic_id="t", job="seal")
    clock.move(TTL_MS)
    # The thread that renews may wake up before the job looks.
    held.renew()

    with pytest.raises(LeaseLapsedError):
        held.check()
    assert ids(tmp_path, clock) == set()


def test_a_replay_goes_on_being_protected_after_a_pause(
    tmp_path: Path, clock: ManualClock, keeper: LeaseKeeper
) -> None:
    held = keeper.hold(topic_id="t", job="replay", snapshot_id=1)
    clock.move(TTL_MS)
    held.renew()

    assert ids(tmp_path, clock) == {held.id}


def test_a_renewal_that_could_not_be_written_does_not_count(
    clock: ManualClock, keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = keeper.hold(topic_id="t", job="seal")

    def full(lease: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keeper, "write", full)
    clock.move(TTL_MS - 1)
    with pytest.raises(OSError, match="No space"):
        held.renew()
    clock.move(1)
    with pytest.raises(LeaseLapsedError):
        held.check()


def test_one_that_can_not_be_taken_is_an_error_of_ours(
    keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(lease: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keeper, "write", full)
    with pytest.raises(StorageError, match="No space left"):
        keeper.hold(topic_id="t", job="seal")


def test_what_is_no_lease_is_passed_over_and_goes_with_time(
    tmp_path: Path, clock: ManualClock, keeper: LeaseKeeper
) -> None:
    with keeper.hold(topic_id="t", job="seal") as held:
        for name, content in {"a": "garbage", "b": "{}", "c": '{"id": 1}'}.items():
            (tmp_path / "leases" / f"{name}.json").write_text(content)
        assert ids(tmp_path, clock) == {held.id}
        leases.sweep(tmp_path, clock.now_ms() - 10 * TTL_MS)
        assert len(list((tmp_path / "leases").iterdir())) == 4
    leases.sweep(tmp_path, clock.now_ms() + 10 * TTL_MS)
    assert list((tmp_path / "leases").iterdir()) == []


def test_sweeping_forgets_those_that_ended_before_a_time(
    tmp_path: Path, clock: ManualClock, keeper: LeaseKeeper
) -> None:
    keeper.hold(topic_id="t", job="seal")
    clock.move(10)
    later = keeper.hold(topic_id="t", job="seal")

    leases.sweep(tmp_path, clock.now_ms() + TTL_MS)

    assert [path.stem for path in (tmp_path / "leases").iterdir()] == [later.id]


def test_closing_releases_everything_and_ends_the_thread(
    tmp_path: Path, clock: ManualClock, keeper: LeaseKeeper
) -> None:
    held = [keeper.hold(topic_id="t", job="seal") for _ in range(3)]
    thread = keeper._thread
    keeper.close()

    assert ids(tmp_path, clock) == set()
    assert thread is not None and not thread.is_alive()
    held[0].release()


def test_the_thread_renews(tmp_path: Path, clock: ManualClock) -> None:
    """The interval is real time, a third of the lease's; the ends are the clock's."""
    keeper = LeaseKeeper(tmp_path, clock, 3)
    renewed = threading.Event()
    real = keeper.write
    with keeper.hold(topic_id="t", job="replay", snapshot_id=1):
        keeper.write = lambda lease: (real(lease), renewed.set())  # type: ignore[method-assign, assignment]
        assert renewed.wait(180)
    keeper.close()
