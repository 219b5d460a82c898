"""Ways to make a legal history illegal: each changes what one client was told, and names the rule that finds it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lastword.testing.history import (
    Erase,
    Fetch,
    History,
    OffsetCommit,
    OffsetRead,
    Operation,
    Outcome,
    Positions,
    Produce,
    ProducedRecord,
    SeenRecord,
    StateRead,
    TopicCreated,
    TopicDeleted,
)

Mutation = Callable[[list[Operation], random.Random], list[Operation] | None]
"""Returns the changed history, or None if this one offers nothing to change."""

MUTATIONS: dict[str, tuple[str, Mutation]] = {}


def _finds(rule: str) -> Callable[[Mutation], Mutation]:
    def add(mutation: Mutation) -> Mutation:
        MUTATIONS[mutation.__name__] = (rule, mutation)
        return mutation

    return add


def mutated(history: History, name: str, rng: random.Random) -> History | None:
    changed = MUTATIONS[name][1](list(history), rng)
    return None if changed is None else History.of(changed)


# --------------------------------------------------------------------------------------------------- helpers


def _ok(operations: list[Operation], kind: type[Any]) -> list[Any]:
    return [each for each in operations if isinstance(each, kind) and each.outcome is Outcome.OK]


def _swap(operations: list[Operation], old: Operation, new: Operation) -> list[Operation]:
    return [new if each is old else each for each in operations]


def _winners(operations: list[Operation]) -> dict[int, SeenRecord]:
    """The records of each key that were appended last, by offset: the last fetch must show them."""
    last: dict[bytes, SeenRecord] = {}
    for each in _ok(operations, Produce):
        for index, record in enumerate(each.records):
            if record.key is not None:
                offset = each.base_offset + index
                seen = SeenRecord(offset=offset, key=record.key, value=record.value)
                if record.key not in last or last[record.key].offset < offset:
                    last[record.key] = seen
    return {each.offset: each for each in last.values()}


def _last_fetch(operations: list[Operation]) -> Fetch | None:
    found = [each for each in _ok(operations, Fetch) if each.records]
    return found[-1] if found else None


def _shown(operations: list[Operation], tombstone: bool = False) -> tuple[Fetch, SeenRecord] | None:
    """The last fetch, and a winner that it shows."""
    fetch = _last_fetch(operations)
    if fetch is None:
        return None
    winners = _winners(operations)
    for record in reversed(fetch.records):
        if record.offset in winners and (record.value is None) is tombstone:
            return fetch, record
    return None


def _after(operations: list[Operation], kind: type[Any], **given: Any) -> Operation:
    """An operation after all others."""
    last = max(max(each.invoked, each.completed or 0) for each in operations)
    now_ms = operations[-1].invoked_ms
    return kind(  # type: ignore[no-any-return]
        process="m",
        invoked=last + 1,
        completed=last + 2,
        invoked_ms=now_ms,
        completed_ms=now_ms,
        outcome=Outcome.OK,
        topic="users",
        **given,
    )


def _end(operations: list[Operation]) -> int:
    """An offset at or above the log end."""
    read = max((each.next_offset for each in _ok(operations, Fetch)), default=0)
    sent = [
        each.base_offset + len(each.records)
        for each in _ok(operations, Produce)
        if each.base_offset is not None
    ]
    return max([read, *sent])


def _show(operations: list[Operation], record: SeenRecord) -> list[Operation]:
    """Let a further fetch show a record."""
    end = max(_end(operations), record.offset + 1)
    fetch = _after(
        operations,
        Fetch,
        partition=0,
        session="m",
        from_offset=record.offset,
        next_offset=record.offset + 1,
        high_watermark=end,
        records=(record,),
    )
    return [*operations, fetch]


def _edit(
    operations: list[Operation], edit: Callable[[SeenRecord], SeenRecord], tombstone: bool = False
) -> Any:
    found = _shown(operations, tombstone)
    if found is None:
        return None
    fetch, record = found
    records = tuple(edit(each) if each is record else each for each in fetch.records)
    return _swap(operations, fetch, replace(fetch, records=records))


def _drop(operations: list[Operation], tombstone: bool) -> list[Operation] | None:
    found = _shown(operations, tombstone)
    if found is None:
        return None
    fetch, record = found
    return _swap(
        operations, fetch, replace(fetch, records=tuple(each for each in fetch.records if each is not record))
    )


# ------------------------------------------------------------------------------------------------------ records


@_finds("durable")
def lose_an_acknowledged_record(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    return _drop(operations, tombstone=False)


@_finds("tombstones")
def lose_a_tombstone_early(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    return _drop(operations, tombstone=True)


@_finds("durable")
def lose_everything(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    found = _shown(operations)
    return None if found is None else _swap(operations, found[0], replace(found[0], records=()))


@_finds("durable")
def double_a_record(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    found = _shown(operations)
    return None if found is None else _show(operations, replace(found[1], offset=_end(operations) + 5))


@_finds("durable")
def show_records_out_of_order(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    fetch = next((each for each in _ok(operations, Fetch) if len(each.records) > 1), None)
    return None if fetch is None else _swap(operations, fetch, replace(fetch, records=fetch.records[::-1]))


@_finds("durable")
def acknowledge_an_offset_twice(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    produce = _ok(operations, Produce)[0]
    again = _after(
        operations,
        Produce,
        partition=0,
        records=(ProducedRecord(key=b"z", value=b"new"),),
        base_offset=produce.base_offset,
    )
    return [*operations, again]


@_finds("durable")
def acknowledge_below_what_was_acknowledged_before(
    operations: list[Operation], _: random.Random
) -> list[Operation] | None:
    produces = _ok(operations, Produce)
    first, last = produces[0], produces[-1]
    if first is last or first.completed >= last.invoked:
        return None
    high = _end(operations) + 10
    changed = [each for each in operations if not isinstance(each, Fetch | StateRead)]
    return _swap(changed, first, replace(first, base_offset=high))


@_finds("durable")
def end_below_what_was_acknowledged(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    return [*operations, _after(operations, Positions, partition=0, log_end=0)]


@_finds("durable")
def start_above_what_nothing_lets_go(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    return [*operations, _after(operations, Positions, partition=0, log_start=_end(operations))]


@_finds("refused")
def show_what_was_refused(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    for each in operations:
        if isinstance(each, Produce) and each.outcome is Outcome.REFUSED:
            for record in each.records:
                if record.value is not None:
                    seen = SeenRecord(offset=_end(operations) + 3, key=record.key, value=record.value)
                    return _show(operations, seen)
    return None


@_finds("refused")
def show_what_nobody_sent(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    return _show(operations, SeenRecord(offset=_end(operations) + 3, key=b"alice", value=b"made up"))


@_finds("refused")
def show_a_tombstone_that_nobody_sent(
    operations: list[Operation], _: random.Random
) -> list[Operation] | None:
    return _show(operations, SeenRecord(offset=_end(operations) + 3, key=b"made up", value=None))


@_finds("refused")
def show_a_record_before_it_is_sent(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    shown = _show(operations, SeenRecord(offset=_end(operations) + 3, key=b"z", value=b"new"))
    return [*shown, _after(shown, Produce, partition=0, records=(ProducedRecord(key=b"z", value=b"new"),))]


@_finds("immutable")
def change_a_value(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    found = _shown(operations)
    if found is None:
        return None
    # It was seen before by another reader.
    seen = _show(operations, found[1])
    return _show(seen, replace(found[1], value=b"changed"))


@_finds("immutable")
def change_a_key(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    found = _shown(operations)
    return None if found is None else _show(_show(operations, found[1]), replace(found[1], key=b"bob2"))


@_finds("immutable")
def change_a_timestamp(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    return _edit(operations, lambda each: replace(each, timestamp_ms=7))  # type: ignore[no-any-return]


@_finds("immutable")
def change_headers(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    return _edit(operations, lambda each: replace(each, headers=(("x", None),)))  # type: ignore[no-any-return]


@_finds("immutable")
def show_a_value_where_a_tombstone_was(
    operations: list[Operation], _: random.Random
) -> list[Operation] | None:
    found = _shown(operations, tombstone=True)
    return None if found is None else _show(_show(operations, found[1]), replace(found[1], value=b"alive"))


# ------------------------------------------------------------------------------------------------------- states


def _last_state(operations: list[Operation]) -> StateRead | None:
    found = [each for each in _ok(operations, StateRead) if each.as_of is None and each.state]
    return found[-1] if found else None


def _is_sure(operations: list[Operation], key: bytes) -> bool:
    doubts = [each for each in operations if isinstance(each, Produce) and each.outcome is Outcome.DOUBT]
    return not any(record.key == key for each in doubts for record in each.records)


@_finds("last-word")
def leave_a_key_out_of_the_state(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    read = _last_state(operations)
    key = next((key for key in read.state or () if _is_sure(operations, key)), None) if read else None
    if read is None or read.state is None or key is None:
        return None
    state = {name: value for name, value in read.state.items() if name != key}
    return _swap(operations, read, replace(read, state=state))


@_finds("last-word")
def show_an_older_value_in_the_state(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    read = _last_state(operations)
    for each in _ok(operations, Produce) if read is not None else ():
        for record in each.records:
            shown = (read.state or {}).get(record.key)
            if shown and record.value and record.value != shown and _is_sure(operations, record.key):
                state = {**read.state, record.key: record.value}
                return _swap(operations, read, replace(read, state=state))
    return None


@_finds("refused")
def make_a_value_of_the_state_up(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    read = _last_state(operations)
    if read is None:
        return None
    return _swap(operations, read, replace(read, state={**(read.state or {}), b"alice": b"made up"}))


@_finds("last-word")
def bring_a_deleted_key_into_the_state(
    operations: list[Operation], _: random.Random
) -> list[Operation] | None:
    tail: list[Operation] = [*operations]
    for value in (b"short", None):
        record = ProducedRecord(key=b"ghost", value=value)
        offset = _end(operations) + 50 + (value is None)
        tail.append(_after(tail, Produce, partition=0, records=(record,), base_offset=offset))
    return [*tail, _after(tail, StateRead, state={b"ghost": b"short"})]


@_finds("fixed-past")
def change_the_past(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    for each in reversed(_ok(operations, StateRead)):
        if each.as_of is not None and each.state:
            key = next((key for key in each.state if _is_sure(operations, key)), None)
            if key is not None:
                state = {name: value for name, value in each.state.items() if name != key}
                again = _after(
                    operations, StateRead, as_of=each.as_of, partitions=each.partitions, state=state
                )
                return [*operations, again]
    return None


# ------------------------------------------------------------------------------------------------- everything else


@_finds("no-return")
def bring_a_record_back(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    fetches = [each for each in _ok(operations, Fetch) if each.first_dirty]
    for fetch in reversed(fetches):
        shown = {each.offset for each in fetch.records}
        for each in _ok(operations, Produce):
            for index, record in enumerate(each.records):
                offset = each.base_offset + index
                if (
                    fetch.from_offset <= offset < min(fetch.next_offset, fetch.first_dirty)
                    and offset not in shown
                ):
                    seen = SeenRecord(
                        offset=offset, key=record.key, value=record.value, headers=record.headers
                    )
                    return _show(operations, seen)
    return None


@_finds("erased")
def read_what_was_erased(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    found = _shown(operations)
    if found is None:
        return None
    erase = _after(operations, Erase, keys=(found[1].key,))
    return _show([*operations, erase], found[1])


@_finds("next-life")
def show_a_record_of_an_earlier_life(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    found = _shown(operations)
    if found is None:
        return None
    tail = [*operations, _after(operations, TopicDeleted)]
    tail.append(_after(tail, TopicCreated, settings={"cleanup.policy": "compact"}))
    return _show(tail, replace(found[1], offset=0))


@_finds("next-life")
def read_a_commit_of_an_earlier_life(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    tail = [*operations, _after(operations, OffsetCommit, group="h", partition=0, offset=77)]
    tail.append(_after(tail, TopicDeleted))
    tail.append(_after(tail, TopicCreated, settings={}))
    return [*tail, _after(tail, OffsetRead, group="h", partition=0, offset=77)]


@_finds("group-offsets")
def forget_a_commit(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    tail = [*operations, _after(operations, OffsetCommit, group="h", partition=0, offset=77)]
    return [*tail, _after(tail, OffsetRead, group="h", partition=0, offset=None)]


@_finds("group-offsets")
def read_an_overwritten_commit(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    tail = [*operations, _after(operations, OffsetCommit, group="h", partition=0, offset=76)]
    tail.append(_after(tail, OffsetCommit, group="h", partition=0, offset=77))
    return [*tail, _after(tail, OffsetRead, group="h", partition=0, offset=76)]


def _step_back(operations: list[Operation], name: str) -> list[Operation]:
    tail = [*operations, _after(operations, Positions, partition=0, **{name: 500})]
    return [*tail, _after(tail, Positions, partition=0, **{name: 499})]


@_finds("positions")
def move_the_first_dirty_offset_back(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    return _step_back(operations, "first_dirty")


@_finds("positions")
def move_the_sealed_end_back(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    return _step_back(operations, "sealed_end")


@_finds("positions")
def move_the_log_end_back(operations: list[Operation], _: random.Random) -> list[Operation] | None:
    return _step_back(operations, "log_end")
