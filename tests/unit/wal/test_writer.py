"""The writer: offsets, and rolls."""

from __future__ import annotations

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import WalFolder, numbered, one_batch, settings
from tests.support.syncs import Syncs, in_thread, waiting
from tests.support.waiting import wait_until

from lastword import batch
from lastword.errors import ClosedError, WriteFailedError
from lastword.folder import disk, steps
from lastword.wal import checkpoint as checkpoints
from lastword.wal.checkpoint import DeleterCheckpoint
from lastword.wal.files import walk
from lastword.wal.state import Phase
from lastword.wal.writer import roll_reason


class TestOffsets:
    def test_records_get_offsets_in_a_row(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            assert writer.append(one_batch("0")) == 0
            assert writer.append(one_batch("1", "2", "3")) == 1
            assert writer.append(one_batch("4")) == 4
            assert writer.end_offset == 5

        assert wal.read() == numbered(0, 5)

    def test_they_go_on_after_a_clean_close(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            wal.fill(writer, 0, 3)
        with wal.opened() as writer:
            assert writer.append(one_batch("3")) == 3

        assert wal.read() == numbered(0, 4)

    def test_a_batch_carries_its_offset_and_the_leader_epoch(self, wal: WalFolder) -> None:
        wal.kill(wal.open())
        wal.fill(dying := wal.open(), 0, 1)
        wal.kill(dying)
        with wal.opened() as writer:
            wal.fill(writer, 1, 2)

        path = wal.path(1)
        headers = [each.header for each in walk(path, end_position=path.stat().st_size, expected_offset=0)]
        assert [(each.base_offset, each.leader_epoch) for each in headers] == [(0, 0), (1, 1)]

    def test_log_append_time_is_written_into_the_batch(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            writer.append(one_batch("0", now_ms=5), append_time_ms=77)

        path = wal.path(1)
        (placed,) = walk(path, end_position=path.stat().st_size, expected_offset=0)
        assert batch.decode(placed.data).column("timestamp").cast("int64").to_pylist() == [77_000]

    def test_batches_staged_together_have_nobody_elses_between_them(
        self, wal: WalFolder, syncs: Syncs
    ) -> None:
        one, size = one_batch("x"), len(one_batch("x"))
        writer = wal.open(segment_bytes=size * 2)
        together: list[range] = []
        alone: list[int] = []
        # A sync is under way, so the roll that the third batch needs must wait and let go of the lock.
        writer.stage(one)
        syncs.may_go.clear()
        syncing = in_thread(writer.sync)
        assert syncs.entered.wait(180)
        first = in_thread(lambda: together.append(writer.stage_all([one] * 4)))
        wait_until(lambda: waiting(writer) == 1)
        second = in_thread(lambda: alone.append(writer.stage(one)[0]))
        syncs.may_go.set()
        for thread in (syncing, first, second):
            thread.join(180)

        assert together == [range(1, 5)]
        assert alone == [5]
        writer.close()

    def test_a_closed_writer_says_so(self, wal: WalFolder) -> None:
        writer = wal.open()
        writer.close()
        writer.close()

        with pytest.raises(ClosedError, match="has been closed"):
            writer.append(one_batch("0"))


class TestRolls:
    @pytest.mark.parametrize(
        ("own", "size_bytes", "incoming_bytes", "age_ms", "reason"),
        [
            ({"segment_bytes": 100}, 60, 40, 0, None),
            ({"segment_bytes": 100}, 60, 41, 0, "segment.bytes"),
            ({"segment_bytes": 100}, 200, 0, 0, None),
            ({"segment_ms": 1000}, 1, 1, 999, None),
            ({"segment_ms": 1000}, 1, 1, 1000, "segment.ms"),
            ({"tiering_lag_ms": 500}, 1, 0, 499, None),
            ({"tiering_lag_ms": 500}, 1, 0, 500, "tiering.lag.ms"),
            ({"tiering_lag_ms": 0}, 1, 0, 0, "tiering.lag.ms"),
            ({"max_compaction_lag_ms": 200, "cleanup_policy": "compact"}, 1, 0, 199, None),
            ({"max_compaction_lag_ms": 200, "cleanup_policy": "compact"}, 1, 0, 200, "max.compaction.lag.ms"),
            ({"max_compaction_lag_ms": 200}, 1, 0, 200, None),
            ({"segment_ms": 1000}, 1, 0, -60_000, None),
            ({"segment_ms": 1000}, 1, 0, -60_001, "the clock was put back"),
        ],
    )
    def test_why_a_file_is_rolled(
        self, own: dict[str, object], size_bytes: int, incoming_bytes: int, age_ms: int, reason: str | None
    ) -> None:
        found = roll_reason(
            settings(**own),
            size_bytes=size_bytes,
            incoming_bytes=incoming_bytes,
            first_append_ms=1000,
            now_ms=1000 + age_ms,
        )

        assert found == reason

    def test_by_size_before_the_batch_that_would_not_fit(self, wal: WalFolder) -> None:
        size = len(one_batch("0"))
        with wal.opened(segment_bytes=2 * size) as writer:
            wal.fill(writer, 0, 5)

        files = wal.checkpoint.files
        assert [(each.seq, each.first_offset, each.size_bytes) for each in files] == [
            (1, 0, 2 * size),
            (2, 2, 2 * size),
            (3, 4, None),
        ]
        assert wal.read() == numbered(0, 5)

    def test_a_batch_larger_than_segment_bytes_is_taken_all_the_same(self, wal: WalFolder) -> None:
        with wal.opened(segment_bytes=14) as writer:
            wal.fill(writer, 0, 3)

        assert [each.first_offset for each in wal.checkpoint.files] == [0, 1, 2]

    def test_by_time_since_the_first_append_not_since_the_opening(
        self, wal: WalFolder, clock: ManualClock
    ) -> None:
        with wal.opened(tiering_lag_ms=1000) as writer:
            clock.move(5000)
            assert not writer.roll_if_due(), "an empty file is not rolled"
            wal.fill(writer, 0, 1)
            clock.move(999)
            assert not writer.roll_if_due()
            clock.move(1)
            assert writer.roll_if_due()
            assert not writer.roll_if_due()
            clock.move(5000)
            wal.fill(writer, 1, 2)
            clock.move(1000)
            wal.fill(writer, 2, 3)

        assert [each.first_offset for each in wal.checkpoint.files] == [0, 1, 2]

    def test_when_asked_for_but_never_an_empty_file(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            assert not writer.roll()
            wal.fill(writer, 0, 1)
            assert writer.roll()
            assert not writer.roll()

        assert wal.seqs == [1, 2]

    def test_a_file_of_an_earlier_process_is_rolled_without_being_opened(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            wal.fill(writer, 0, 2)
        with wal.opened() as writer:
            assert writer.roll()
            wal.fill(writer, 2, 3)

        assert [each.first_offset for each in wal.checkpoint.files] == [0, 2]
        assert wal.read() == numbered(0, 3)

    def test_two_who_ask_at_once_while_a_sync_runs_roll_once(self, wal: WalFolder, syncs: Syncs) -> None:
        writer = wal.open()
        writer.stage(one_batch("0"))
        syncs.may_go.clear()
        threads = [in_thread(writer.sync)]
        assert syncs.entered.wait(180)
        threads += [in_thread(writer.roll) for _ in range(2)]
        wait_until(lambda: waiting(writer) == 2)
        syncs.may_go.set()
        for thread in threads:
            thread.join(180)

        writer.close()
        assert wal.seqs == [1, 2]

    def test_an_append_that_waited_to_roll_looks_again_whether_it_must(
        self, wal: WalFolder, syncs: Syncs
    ) -> None:
        one = one_batch("x")
        writer = wal.open(segment_bytes=len(one))
        writer.stage(one)
        syncs.may_go.clear()
        threads = [in_thread(writer.sync)]
        assert syncs.entered.wait(180)
        threads.append(in_thread(writer.roll))
        wait_until(lambda: waiting(writer) == 1)
        threads.append(in_thread(lambda: writer.stage(one)))
        wait_until(lambda: waiting(writer) == 2)
        syncs.may_go.set()
        for thread in threads:
            thread.join(180)

        writer.close()
        assert all(each.size_bytes for each in wal.checkpoint.files[:-1]), "no empty file was rolled"

    def test_the_checkpoint_has_first_offsets_sizes_and_times(
        self, wal: WalFolder, clock: ManualClock
    ) -> None:
        opened_ms = clock.now_ms()
        with wal.opened() as writer:
            wal.fill(writer, 0, 3)
            clock.move(10)
            writer.roll()

            rolled, active = wal.checkpoint.files
            assert rolled.first_offset == 0
            assert rolled.size_bytes == wal.path(1).stat().st_size
            assert (rolled.opened_ms, rolled.rolled_ms) == (opened_ms, opened_ms + 10)
            assert (active.first_offset, active.opened_ms, active.is_active) == (3, opened_ms + 10, True)
            state = wal.state
            assert (state.seq, state.visible_offset, state.visible_position) == (2, 3, 0)

    def test_a_roll_forgets_files_that_the_deleter_took(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            for number in range(50):
                wal.fill(writer, number, number + 1)
                writer.roll()
                seq = wal.seqs[-1]
                wal.path(seq - 1).unlink()
                checkpoints.save_deleter(
                    wal.folder, DeleterCheckpoint(start_seq=seq, start_offset=number + 1)
                )

            # So the checkpoint does not grow with the life of the partition.
            assert len(wal.checkpoint.files) <= 2

    def test_the_roll_syncs_what_was_written(self, wal: WalFolder, syncs: Syncs) -> None:
        with wal.opened(sync="none") as writer:
            wal.fill(writer, 0, 2)
            writer.roll()

            assert syncs.count == 1
            assert wal.state.durable_offset == 2

    def test_many_threads_appending_and_rolling_lose_and_double_nothing(self, wal: WalFolder) -> None:
        writer = wal.open(segment_bytes=len(one_batch("0-00")) * 7)

        def append(name: int) -> None:
            for number in range(25):
                writer.append(one_batch(f"{name}-{number:02}"))

        threads = [in_thread(lambda name=name: append(name)) for name in range(6)]  # type: ignore[misc]
        for thread in threads:
            thread.join(180)
        writer.close()

        found = wal.read()
        assert [offset for offset, _ in found] == list(range(150))
        for name in range(6):
            own = [value.decode() for _, value in found if value.startswith(f"{name}-".encode())]
            assert own == [f"{name}-{number:02}" for number in range(25)]
        files = wal.checkpoint.files
        assert all((each.size_bytes or 0) > 0 for each in files[:-1])

    def test_a_next_file_that_can_not_be_created_leaves_the_active_one_as_it_is(
        self, wal: WalFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = wal.open()
        wal.fill(writer, 0, 2)
        real = disk.sync_folder

        def full(folder: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(disk, "sync_folder", full)
        with pytest.raises(WriteFailedError, match="free some space and try again"):
            writer.roll()
        monkeypatch.setattr(disk, "sync_folder", real)

        wal.fill(writer, 2, 3)
        assert writer.roll()
        wal.fill(writer, 3, 4)
        writer.close()
        assert wal.read() == numbered(0, 4)

    @pytest.mark.parametrize("step", ["synced", "producers_saved", "created", "named"])
    def test_an_interrupted_one_leaves_every_record_and_no_damage(self, wal: WalFolder, step: str) -> None:
        writer = wal.open()
        wal.fill(writer, 0, 3)

        def interrupt(reached: str) -> None:
            if reached == f"wal.roll.{step}":
                steps.install(None)
                raise KeyboardInterrupt

        steps.install(interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.roll()
        with pytest.raises(WriteFailedError, match="Can't roll"):
            writer.append(one_batch("3"))
        assert wal.state.phase is Phase.FAILED
        assert wal.read() == numbered(0, 3)
        writer.close()

        with wal.opened() as writer:
            wal.fill(writer, 3, 4)
        assert wal.checkpoint.damage == ()
        assert wal.read() == numbered(0, 4)
