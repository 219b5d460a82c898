"""The keys and values of the internal topic. Both are JSON, so that people can read them; a null value deletes.

    key     ["group", 1, group id]
    value   {"version": 1, "generation": …, "protocol_type": …, "protocol_name": …, "leader": …, "since_ms": …,
             "members": [{"member_id": …, "instance_id": …, "client_id": …, "client_host": …, "session_timeout_ms": …,
                          "rebalance_timeout_ms": …, "metadata": base64, "assignment": base64}]}

    key     ["offset", 1, group id, topic id, partition]
    value   {"version": 1, "topic": name, "offset": …, "leader_epoch": …, "metadata": text, "committed_ms": …}

The number in a key is the version of the key's format. Keys and values of a newer version are an error at the start,
and are not skipped: a newer Lastword wrote them.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from uuid import UUID

from lastword.errors import CorruptError, InvalidError
from lastword.record import Record
from lastword.record_json import Json

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGroup:
    """A group as it is stored: stable, or empty if it has no members."""

    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str | None
    since_ms: int
    members: tuple[SavedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """The group and partition of an offset. The topic is given by its id: if it is recreated, it is another topic."""

    group_id: str
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    topic: str
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = 0


def group_record(group_id: str, saved: SavedGroup | None) -> tuple[bytes, bytes | None]:
    key = _dump(["group", VERSION, group_id])
    if saved is None:
        return key, None
    return key, _dump({"version": VERSION, **asdict(saved)})


def offset_record(key: OffsetKey, committed: CommittedOffset | None) -> tuple[bytes, bytes | None]:
    encoded = _dump(["offset", VERSION, key.group_id, key.topic_id.hex, key.partition])
    if committed is None:
        return encoded, None
    value = {
        "version": VERSION,
        "topic": committed.topic,
        "offset": committed.offset,
        "leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "committed_ms": committed.committed_ms,
    }
    return encoded, _dump(value)


def parse(record: Record, *, topic: str) -> tuple[str | OffsetKey, SavedGroup | CommittedOffset | None]:
    """Parse a record of the internal topic: a group id with its group, or an offset's key with the offset."""
    try:
        kind, version, *rest = json.loads(record.key or b"")
        value = None if record.value is None else json.loads(record.value)
        _check_version(version if value is None else max(version, value["version"]), topic)
        if kind == "group":
            (group_id,) = rest
            return str(group_id), None if value is None else _group(value)
        if kind == "offset":
            group_id, topic_id, partition = rest
            key = OffsetKey(str(group_id), UUID(topic_id), int(partition))
            return key, None if value is None else _offset(value)
        raise ValueError(f"{kind!r} is neither 'group' nor 'offset'")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(
            f"the record at offset {record.offset} of {topic} can't be read: {error!r}",
            path=topic,
            offset=record.offset,
        ) from error


def _check_version(version: int, topic: str) -> None:
    if version > VERSION:
        raise InvalidError(
            f"{topic} has records of version {version}; this Lastword reads up to {VERSION}. Use a newer one."
        )


def _group(value: Json) -> SavedGroup:
    return SavedGroup(
        generation=value["generation"],
        protocol_type=value["protocol_type"],
        protocol_name=value["protocol_name"],
        leader=value["leader"],
        since_ms=value["since_ms"],
        members=tuple(
            SavedMember(
                **{
                    **each,
                    "metadata": base64.b64decode(each["metadata"]),
                    "assignment": base64.b64decode(each["assignment"]),
                }
            )
            for each in value["members"]
        ),
    )


def _offset(value: Json) -> CommittedOffset:
    return CommittedOffset(**{name: each for name, each in value.items() if name != "version"})


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_text).encode()


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
