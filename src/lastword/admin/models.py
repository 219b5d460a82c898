"""The requests. In a body, an unknown field is refused, and the error names it; in a query it is ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from lastword.errors import InvalidError, InvalidRecordError
from lastword.operations.options import decoded, one_key
from lastword.record_json import Json, Parsed, parse_record

MAX_RECORDS = 10_000
"""The most records of one answer."""

Records = list[dict[str, Any]]


def _number(given: object) -> object:
    return int(given) if isinstance(given, str) and given.isascii() and given.isdecimal() else given


SnapshotId = Annotated[
    int,
    BeforeValidator(_number, json_schema_input_type=int | str),
    Field(description="The id of a snapshot, as in the history."),
]


class Request(BaseModel):
    """What a request says besides its path."""

    def said(self) -> Json:
        """Return the parameters of the operation in the table."""
        return self.model_dump(by_alias=True)


class _Body(Request):
    model_config = ConfigDict(extra="forbid", strict=True)


class ShowWal(Request):
    """The WAL to show."""

    topic: str | None = Field(default=None, description="Only this topic.")


class Explain(Request):
    """The records to explain."""

    partition: int | None = Field(default=None, description="Only this partition.")
    key: str | None = Field(default=None, description="Only records of this key, as text.")
    key_base64: str | None = Field(default=None, description="Only records of this key, in base64.")
    from_offset: int = Field(default=0, alias="from", ge=0)
    limit: int = Field(default=100, ge=1, le=MAX_RECORDS)
    run: Literal["asked for", "forced", "worker"] = Field(
        default="asked for",
        description="The run to explain: that of `compact`, the same with `force`, or the worker's.",
    )
    seal: bool = Field(default=True, description="Whether the run seals first.")

    def said(self) -> Json:
        key = one_key(None if self.key is None else self.key.encode(), self.key_base64)
        return {**self.model_dump(by_alias=True, exclude={"key_base64"}), "key": key}


class NewTopic(_Body):
    """A topic to create."""

    name: str = Field(description="The topic's full name, such as `users` or `db.users`.")
    partitions: int = 1
    config: dict[str, str] = Field(
        default_factory=dict,
        description="The topic's own settings.",
        examples=[{"cleanup.policy": "compact"}],
    )


class TopicChanges(_Body):
    """Changes to a topic. Either all are applied or none."""

    set: dict[str, str] = Field(default_factory=dict, description="Settings to set on the topic.")
    unset: list[str] = Field(
        default_factory=list, description="Settings to remove, so that they are inherited again."
    )
    partitions: int | None = Field(default=None, description="The new, larger number of partitions.")


class DeleteRecords(_Body):
    """The records of a partition to delete."""

    partition: int
    before: int = Field(description="The new log start; -1 deletes all records.")


class CompactTopic(_Body):
    """How to compact one topic."""

    partitions: list[int] | None = Field(default=None, description="Only these; null means all.")
    seal: bool = Field(default=True, description="First seal records that are only in the WAL.")
    force: bool = Field(default=False, description="Compact every partition, even if nothing is dirty.")
    dry_run: bool = False


class CompactAll(_Body):
    """Which partitions of all topics to compact."""

    all: bool = Field(default=False, description="Everything that is dirty, not only what is due.")
    dry_run: bool = False


class Verify(_Body):
    """The snapshots to compare; by default those before and after the last compaction."""

    before: SnapshotId | None = None
    after: SnapshotId | None = None


class Erase(_Body):
    """The keys to erase."""

    keys: list[str] = Field(default_factory=list, description="Keys that are text.")
    keys_base64: list[str] = Field(default_factory=list, description="Keys of any bytes, in base64.")

    def said(self) -> Json:
        keys = [each.encode() for each in self.keys]
        keys += [decoded(each, "keys_base64") for each in self.keys_base64]
        if not keys:
            raise InvalidError("No key was given to erase; give keys or keys_base64.")
        return {"keys": keys}


class Retention(_Body):
    """A round of retention."""

    dry_run: bool = False
    topics: list[str] | None = Field(default=None, description="Only these; null means all.")


class Backup(_Body):
    """The destination of a backup of the whole log."""

    to: str = Field(
        description="A folder on the server's machine, by its absolute path, or an address such as `s3://bucket/path`."
    )
    keep: int | None = Field(default=None, ge=1, description="Keep only the newest N; null keeps all.")
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="Properties of the object store, in addition to those of the server's catalog.",
        examples=[{"s3.endpoint": "http://127.0.0.1:9000"}],
    )

    def said(self) -> Json:
        if "://" not in self.to and not self.to.startswith("/"):
            raise InvalidError(
                f"to: {self.to!r} must be an absolute path, or an address such as s3://bucket/path."
            )
        return self.model_dump()


class Nothing(_Body):
    """An empty object."""


class NewRecords(_Body):
    """Records to append after all of them have been checked."""

    records: Records = Field(
        max_length=100_000,
        description="Each is an object with `value` (text or null, or `value_base64`), and optionally `key` (or "
        "`key_base64`), `headers`, `timestamp` (milliseconds or ISO 8601) and `partition`.",
        examples=[[{"key": "alice", "value": "Oslo"}, {"key": "bob", "value": None}]],
    )
    partition: int | None = Field(default=None, description="Append to this partition.")
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    check_only: bool = Field(default=False, description="Check the records without appending them.")

    def said(self) -> Json:
        records = [_parsed(index, each) for index, each in enumerate(self.records)]
        return {**self.model_dump(exclude={"records"}), "records": records}


def _parsed(index: int, entry: Json) -> Parsed:
    try:
        return parse_record(entry)
    except InvalidRecordError as error:
        raise InvalidRecordError(f"records.{index}: {error}") from None
    except InvalidError as error:
        raise InvalidError(f"records.{index}: {error}") from None


REQUESTS: dict[str, type[Request]] = {
    "create_topic": NewTopic,
    "alter_topic": TopicChanges,
    "produce": NewRecords,
    "delete_records": DeleteRecords,
    "show_wal": ShowWal,
    "compact_topic": CompactTopic,
    "compact": CompactAll,
    "verify": Verify,
    "erase": Erase,
    "explain": Explain,
    "backup": Backup,
    "retention": Retention,
}
"""The requests of the operations in the table. The other operations take no more than their path says."""


class Problem(BaseModel):
    """An error, in the form of RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    error: str = Field(description="The name of the error's class in Lastword.")


class StoryRecord(_Body):
    """A record of a story."""

    key: str | None = Field(default=None, max_length=200)
    value: str | None = Field(default=None, max_length=200, description="null deletes the key.")


class ClockMove(_Body):
    """How far to move a story's clock forward."""

    forward_ms: int = Field(ge=0, le=366 * 24 * 3600 * 1000)


class SceneRun(_Body):
    """The partition to compact and watch."""

    partition: int = Field(default=0, ge=0)
