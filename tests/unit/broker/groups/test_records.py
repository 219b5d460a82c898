"""What is kept of groups comes back as it was; what a newer version wrote is refused."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.broker.groups.records import (
    CommittedOffset,
    OffsetKey,
    SavedGroup,
    SavedMember,
    group_record,
    offset_record,
    parse,
)
from lastword.errors import CorruptError, InvalidError
from lastword.record import Record, TimestampType

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MEMBERS = st.builds(
    SavedMember,
    member_id=TEXT,
    instance_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    session_timeout_ms=st.integers(0, 2**31 - 1),
    rebalance_timeout_ms=st.integers(0, 2**31 - 1),
    metadata=st.binary(max_size=50),
    assignment=st.binary(max_size=50),
)
GROUPS = st.builds(
    SavedGroup,
    generation=st.integers(0, 2**31 - 1),
    protocol_type=st.none() | TEXT,
    protocol_name=st.none() | TEXT,
    leader=st.none() | TEXT,
    since_ms=st.integers(0, 2**60),
    members=st.lists(MEMBERS, max_size=3).map(tuple),
)
OFFSETS = st.builds(
    CommittedOffset,
    topic=TEXT,
    offset=st.integers(-1, 2**63 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=TEXT,
    committed_ms=st.integers(0, 2**60),
)
KEYS = st.builds(OffsetKey, TEXT, st.uuids(), st.integers(0, 9999))


def record(entry: tuple[bytes, bytes | None]) -> Record:
    return Record(
        partition=0,
        offset=7,
        timestamp_ms=0,
        timestamp_type=TimestampType.CREATE,
        key=entry[0],
        value=entry[1],
    )


@given(TEXT, st.none() | GROUPS)
def test_group(group_id: str, saved: SavedGroup | None) -> None:
    assert parse(record(group_record(group_id, saved)), topic="t") == (group_id, saved)


@given(KEYS, st.none() | OFFSETS)
def test_offset(key: OffsetKey, committed: CommittedOffset | None) -> None:
    assert parse(record(offset_record(key, committed)), topic="t") == (key, committed)


@given(KEYS, KEYS)
def test_keys_are_equal_only_if_what_they_stand_for_is(one: OffsetKey, other: OffsetKey) -> None:
    assert (offset_record(one, None)[0] == offset_record(other, None)[0]) == (one == other)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"not json", None),
        (b'["other",1,"g"]', None),
        (b'["group",1]', None),
        (b'["offset",1,"g","no id",0]', None),
        (b'["group",1,"g"]', b"{"),
        (b'["group",1,"g"]', b'{"version":1}'),
        (b'["group",1,"g"]', b"[]"),
    ],
)
def test_damage_is_named_with_its_offset(key: bytes, value: bytes | None) -> None:
    with pytest.raises(CorruptError, match="offset 7 of the-topic") as caught:
        parse(record((key, value)), topic="the-topic")
    assert caught.value.offset == 7


def test_newer_versions_are_refused() -> None:
    key, value = offset_record(OffsetKey("g", UUID(int=1), 0), CommittedOffset(topic="t", offset=1))
    assert value is not None
    newer = json.dumps({**json.loads(value), "version": 2}).encode()
    with pytest.raises(InvalidError, match="records of version 2; this Lastword reads up to 1"):
        parse(record((key, newer)), topic="t")
    with pytest.raises(InvalidError, match="version 3"):
        parse(record((key.replace(b"1", b"3", 1), None)), topic="t")
