"""What requests may say. A field that is not known is refused, and named."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from lastword.admin.context import keys_of
from lastword.errors import InvalidError
from lastword.record_json import Json

Records = list[dict[str, Any]]


def _number(given: object) -> object:
    return int(given) if isinstance(given, str) and given.isascii() and given.isdecimal() else given


SnapshotId = Annotated[
    int,
    BeforeValidator(_number, json_schema_input_type=int | str),
    Field(description="A snapshot, as in the history."),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    def said(self) -> Json:
        """What an operation of the table is told."""
        return self.model_dump()


class NewTopic(_Body):
    """A topic to create."""

    name: str = Field(description="The topic's full name, such as `users` or `db.users`.")
    partitions: int = 1
    config: dict[str, str] = Field(
        default_factory=dict,
        description="Settings of its own.",
        examples=[{"cleanup.policy": "compact"}],
    )


class TopicChanges(_Body):
    """Changes of a topic: everything is applied, or nothing."""

    set: dict[str, str] = Field(default_factory=dict, description="Settings to give to the topic.")
    unset: list[str] = Field(
        default_factory=list, description="Settings to take back, so that they are inherited again."
    )
    partitions: int | None = Field(default=None, description="The new, larger number of partitions.")


class DeleteRecords(_Body):
    """Up to where the records of a partition go."""

    partition: int
    before: int = Field(description="The new log start; -1: all records go.")


class CompactTopic(_Body):
    """How to compact one topic."""

    partitions: list[int] | None = Field(default=None, description="Only these; null is all.")
    seal: bool = Field(default=True, description="Seal first what is only in the WAL.")
    force: bool = Field(default=False, description="Go through everything, also where nothing is dirty.")
    dry_run: bool = False


class CompactAll(_Body):
    """Which partitions of all topics to compact."""

    all: bool = Field(default=False, description="Whatever is dirty, not only what is due.")
    dry_run: bool = False


class Verify(_Body):
    """Two snapshots; without them those around the last compaction."""

    before: SnapshotId | None = None
    after: SnapshotId | None = None


class Erase(_Body):
    """Keys whose every trace goes."""

    keys: list[str] = Field(default_factory=list, description="Keys that are text.")
    keys_base64: list[str] = Field(default_factory=list, description="Keys that are any bytes.")

    def said(self) -> Json:
        return {"keys_base64": keys_of(self.keys, self.keys_base64)}


class Retention(_Body):
    """A round of retention."""

    dry_run: bool = False
    topics: list[str] | None = Field(default=None, description="Only these; null is all.")


class Backup(_Body):
    """Where a backup of the whole log goes."""

    to: str = Field(
        description="A folder of the server's machine, by its whole path, or an address such as `s3://bucket/path`."
    )
    keep: int | None = Field(default=None, ge=1, description="Only so many of the newest stay; null: all.")
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="How to reach the object store, beside the properties of the server's catalog.",
        examples=[{"s3.endpoint": "http://127.0.0.1:9000"}],
    )

    def said(self) -> Json:
        if "://" not in self.to and not self.to.startswith("/"):
            raise InvalidError(
                f"to: {self.to!r} must be a whole path, or an address such as s3://bucket/path."
            )
        return self.model_dump()


class Nothing(_Body):
    """An empty object."""


REQUESTS: dict[str, type[_Body]] = {
    "create_topic": NewTopic,
    "alter_topic": TopicChanges,
    "delete_records": DeleteRecords,
    "compact_topic": CompactTopic,
    "compact": CompactAll,
    "verify": Verify,
    "erase": Erase,
    "backup": Backup,
    "retention": Retention,
}
"""What the operations of the table are asked with; the others take nothing."""


class NewRecords(_Body):
    """Records to append, once all of them have been checked."""

    records: Records = Field(
        max_length=100_000,
        description="Each an object with `value` (text or null, or `value_base64`), and if wanted `key` (or "
        "`key_base64`), `headers`, `timestamp` (milliseconds or ISO 8601) and `partition`.",
        examples=[[{"key": "alice", "value": "Oslo"}, {"key": "bob", "value": None}]],
    )
    partition: int | None = Field(default=None, description="Append to this partition.")
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    check_only: bool = Field(default=False, description="Check the records, and append none.")


class Problem(BaseModel):
    """An error, in the form of RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    error: str = Field(description="The name of the error in Lastword's tree of errors.")


class StoryRecord(_Body):
    """A record of a story."""

    key: str | None = Field(default=None, max_length=200)
    value: str | None = Field(default=None, max_length=200, description="null deletes the key.")


class ClockMove(_Body):
    """How far a story's clock is put forward."""

    forward_ms: int = Field(ge=0, le=366 * 24 * 3600 * 1000)


class SceneRun(_Body):
    """Which partition to compact and watch."""

    partition: int = Field(default=0, ge=0)
