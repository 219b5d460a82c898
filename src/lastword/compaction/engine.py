"""Engines, which carry out units: the protocol of an engine, and the one that works in this process.

An engine takes units of any topics and partitions and returns an outcome or an error for each. It decides
nothing about records. task.py does, and is the same everywhere.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from lastword.clock import monotonic_s
from lastword.compaction import task
from lastword.compaction.keyset import SetTooLargeError, Share
from lastword.compaction.plan import MAX_SHARES, Way
from lastword.compaction.round import Round, RoundDamaged, RoundDone, RoundSkipped
from lastword.compaction.rules import oldest_of_all
from lastword.compaction.sealing import seal_round
from lastword.compaction.survivors import Mask, Survivors, finish, pack, unpack
from lastword.compaction.unit import Outcome, Unit
from lastword.errors import LastwordError
from lastword.segments.model import Segment
from lastword.segments.raw import RawSegment

logger = logging.getLogger(__name__)

MAX_INLINE_SHARES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A unit, and the way it is carried out."""

    unit: Unit
    way: Way
    shares: int = 1


RoundResult = RoundDone | RoundDamaged | RoundSkipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A unit that could not be carried out. It left no visible trace."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLarge:
    """The keys of a unit did not fit into a task's memory: another way is needed."""


Result = Outcome | Failure | TooLarge


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFound:
    """The result of one share of a unit's keys: a packed mask per segment, in offset order, and their cost."""

    masks: tuple[bytes, ...]
    read_bytes: int
    set_bytes: int


class Engine(Protocol):
    """Carries out units. `parallel` is the number of tasks that it runs at a time."""

    @property
    def name(self) -> str: ...

    @property
    def parallel(self) -> int: ...

    @property
    def reaches_local_files(self) -> bool:
        """Whether its tasks run on this machine, so that they can read the WAL."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether it carries out units just now."""
        ...

    @property
    def rounds_at_a_time(self) -> int:
        """The number of rounds of sealing that keep it busy."""
        ...

    def run_rounds(self, rounds: Sequence[Round]) -> list[RoundResult | Failure | TooLarge]:
        """Return a result for each round of sealing, in their order. They share the memory that each of them has."""
        ...

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        """Return a result for each job, in their order. The failure of one does not affect the others."""
        ...

    def close(self) -> None: ...


def next_way(job: Job) -> Job:
    """Return the same unit with a way that needs less memory."""
    if job.way == "one stage":
        return replace(job, way="two stages", shares=2)
    if job.way == "two stages" and job.shares < MAX_SHARES:
        return replace(job, shares=job.shares * 2)
    return replace(job, way="Spark SQL", shares=1)


def _failure(error: Exception) -> Failure:
    if not isinstance(error, LastwordError | OSError):
        logger.error("an unexpected error in a compaction", exc_info=error)
        return Failure(message=f"unexpected {type(error).__name__}: {error}")
    return Failure(message=str(error))


def carry_out(unit: Unit) -> Result:
    """Run the only stage, in a task. Errors become results, so that they don't affect other units."""
    try:
        return _with_tombstones(unit, task.compact(unit))
    except SetTooLargeError:
        return TooLarge()
    except Exception as error:  # noqa: BLE001 - no error may affect other units
        return _failure(error)


def carry_out_round(unit: Round) -> RoundResult | Failure | TooLarge:
    """Compact a round while it is sealed, in a task. Errors become results, so that they don't affect other rounds."""
    try:
        return seal_round(unit)
    except SetTooLargeError:
        return TooLarge()
    except Exception as error:  # noqa: BLE001 - no error may affect other rounds
        return _failure(error)


def find_share(unit: Unit, share: Share) -> ShareFound | Failure | TooLarge:
    """Run the first of two stages, in a task: find the survivors among the keys of one share."""
    try:
        survivors = Survivors(unit, share)
        found = {index: pack(mask) for index, mask in survivors.masks()}
        return ShareFound(
            masks=tuple(found[index] for index in range(len(unit.segments))),
            read_bytes=survivors.read_bytes,
            set_bytes=survivors.set_bytes,
        )
    except SetTooLargeError:
        return TooLarge()
    except Exception as error:  # noqa: BLE001 - no error may affect other units
        return _failure(error)


def unite(unit: Unit, shares: Sequence[ShareFound]) -> list[Mask]:
    """Return the masks that all shares together found."""
    return [
        unpack([share.masks[index] for share in shares], segment.records)
        for index, segment in enumerate(unit.segments)
    ]


def rewrite_found(unit: Unit, masks: Sequence[Mask], *, keys_only: bool = False) -> Result:
    """Run the second stage, in a task. With `keys_only`, complete the masks first."""
    try:
        read_bytes = sum(finish(unit, index, mask) for index, mask in enumerate(masks)) if keys_only else 0
        outcome = _with_tombstones(unit, task.rewrite_masked(unit, masks))
        return replace(outcome, read_bytes=outcome.read_bytes + read_bytes)
    except Exception as error:  # noqa: BLE001 - no error may affect other units
        return _failure(error)


def _with_tombstones(unit: Unit, outcome: Outcome) -> Outcome:
    """Count the tombstones that are left, by metadata alone unless records lack a key: those are no tombstones."""
    kept = sum(
        segment.null_values if not segment.null_keys else _count_tombstones(unit, segment)
        for segment in outcome.left
        if segment.null_values
    )
    return replace(outcome, tombstones_kept=kept)


def _count_tombstones(unit: Unit, segment: Segment) -> int:
    count = 0
    with RawSegment(unit.files, segment) as raw:
        for group in raw.row_groups:
            if group.null_values != 0:
                has_key = raw.columns(["key"], [group]).column("key").is_valid().to_numpy()
                count += int(np.count_nonzero(has_key & raw.without_value(group)))
    return count


def join(
    unit: Unit, results: Sequence[Result], duration_s: float, shares: Sequence[ShareFound] = ()
) -> Result:
    """Return one outcome for a unit that several tasks have rewritten, after these shares were found."""
    outcomes = [each for each in results if isinstance(each, Outcome)]
    if len(outcomes) < len(results):
        return next(each for each in results if not isinstance(each, Outcome))
    return Outcome(
        topic=unit.topic,
        partition=unit.partition,
        segments=unit.segments,
        rewritten=tuple(rewritten for each in outcomes for rewritten in each.rewritten),
        marked=tuple(marked for each in outcomes for marked in each.marked),
        read_bytes=sum(each.read_bytes for each in outcomes) + sum(each.read_bytes for each in shares),
        duration_s=duration_s,
        peak_set_bytes=max((each.set_bytes for each in shares), default=0),
        tombstones_kept=sum(each.tombstones_kept for each in outcomes),
        examined=tuple(path for each in outcomes for path in each.examined),
        oldest_examined=oldest_of_all(each.oldest_examined for each in outcomes),
    )


class InlineEngine:
    """Runs the same tasks in this process, for a machine without Java. One unit at a time."""

    name = "inline"
    parallel = 1
    reaches_local_files = True
    is_busy = False

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(2, os.cpu_count() or 1)

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        return [self._run(replace(job, unit=replace(job.unit, threads=self._threads))) for job in jobs]

    def run_rounds(self, rounds: Sequence[Round]) -> list[RoundResult | Failure | TooLarge]:
        """Carry out some rounds at a time: most of the work needs no lock of the interpreter."""
        at_a_time = min(self._threads, max(1, len(rounds)))
        units = [
            replace(
                each, threads=max(1, self._threads // at_a_time), memory_bytes=each.memory_bytes // at_a_time
            )
            for each in rounds
        ]
        with ThreadPoolExecutor(at_a_time, "lastword-rounds") as pool:
            return list(pool.map(carry_out_round, units))

    @property
    def rounds_at_a_time(self) -> int:
        return self._threads

    def close(self) -> None:
        pass

    def _run(self, job: Job) -> Result:
        if job.way == "one stage":
            return carry_out(job.unit)
        # Without Spark, more keys than fit into memory only mean more rounds over them.
        shares = max(job.shares, 2 * MAX_SHARES if job.way == "Spark SQL" else 1)
        while shares <= MAX_INLINE_SHARES:
            result = self._run_shares(job.unit, shares)
            if not isinstance(result, TooLarge):
                return result
            shares *= 2
        return Failure(
            message=f"its keys don't fit into {job.unit.max_set_bytes} bytes even in {MAX_INLINE_SHARES} rounds; "
            f"raise compaction.task.memory.bytes"
        )

    def _run_shares(self, unit: Unit, shares: int) -> Result:
        started_s = monotonic_s()
        found: list[ShareFound] = []
        for index in range(shares):
            share = find_share(unit, Share(index, shares))
            if not isinstance(share, ShareFound):
                return share
            found.append(share)
        result = rewrite_found(unit, unite(unit, found))
        return join(unit, [result], monotonic_s() - started_s, found)
