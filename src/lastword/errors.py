"""Every error that Lastword raises, as one tree. The branch tells what the caller can do.

LastwordError
├── InvalidError               fix the input and call again
│   ├── InvalidConfigError     a setting: key, value, place and allowed values
│   ├── InvalidTopicError      a topic's name or partition count
│   ├── TopicExistsError
│   ├── UnknownTopicError
│   ├── UnknownPartitionError
│   ├── UnknownSourceError
│   ├── UnknownGroupError
│   ├── ForeignFolderError     a data folder that was copied or moved, and not relocated yet
│   ├── InvalidRecordError     a record that may not be appended
│   │   ├── InvalidTimestampError
│   │   ├── RecordTooLargeError
│   │   ├── OutOfOrderSequenceError   batches of an idempotent producer are missing
│   │   └── FencedProducerError       a newer producer has taken over its id
│   └── OffsetOutOfRangeError  below the log start or above the log end
├── UnavailableError           try again later, or when the problem that it names has been fixed
│   ├── LockedError            another process has the role; it is named
│   ├── ConflictError          the table changed while a commit was being prepared
│   ├── NotOwnerError          another data folder owns the topic; it is named
│   ├── LeaseLapsedError       a job was stopped for so long that it may no longer commit
│   ├── StorageError           a file system, object storage or the catalog failed
│   └── WriteFailedError       the WAL could not write or sync: the partition must be reopened
│       └── PartlyAppendedError   other partitions have their records
├── CorruptError               stored bytes are damaged: path, offset, and what to do
└── ClosedError                the log, topic or reader has been closed
"""

from __future__ import annotations

from collections.abc import Mapping


class LastwordError(Exception):
    """The root of all errors of this package."""


class InvalidError(LastwordError):
    """The input is wrong. The message says what is wrong, where, and what is allowed."""


class InvalidConfigError(InvalidError):
    """A setting is unknown, out of range, or contradicts another one."""


class InvalidTopicError(InvalidError):
    """A topic's name or its number of partitions is not allowed."""


class TopicExistsError(InvalidError):
    """A topic of that name already exists."""


class UnknownTopicError(InvalidError):
    """No topic has that name."""


class UnknownPartitionError(InvalidError):
    """The topic has no such partition."""


class UnknownSourceError(InvalidError):
    """No source of that name was ever run on the data folder."""


class UnknownGroupError(InvalidError):
    """No consumer group has that name."""


class ForeignFolderError(InvalidError):
    """The data folder was copied or moved, and its tables name files elsewhere."""


class InvalidRecordError(InvalidError):
    """A record or a batch breaks a rule of its topic or of the format.

    If single records of a batch are the reason, `records` has their positions in the batch and their problems, at
    most the first thousand.
    """

    def __init__(self, message: str, *, records: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(message)
        self.records = records


class InvalidTimestampError(InvalidRecordError):
    """A record's timestamp is too far from now, or can't be stored."""


class RecordTooLargeError(InvalidRecordError):
    """A record is larger than max.message.bytes."""


class OutOfOrderSequenceError(InvalidRecordError):
    """A batch of an idempotent producer does not follow its last one."""


class FencedProducerError(InvalidRecordError):
    """A batch has an older producer epoch than one seen before."""


class OffsetOutOfRangeError(InvalidError):
    """An offset is below the log start or above the log end."""


class UnavailableError(LastwordError):
    """The operation failed for a reason other than the input. Trying again may help."""


class LockedError(UnavailableError):
    """Another process holds the lock. The message names it."""


class ConflictError(UnavailableError):
    """The table changed meanwhile, and the plan no longer fits it."""


class NotOwnerError(UnavailableError):
    """Another data folder owns the topic, or it can't be confirmed that this one still does. The message names it."""


class LeaseLapsedError(UnavailableError):
    """The job did not renew its lease in time, so its files may be gone: it must not commit."""


class StorageError(UnavailableError):
    """A file system, an object store or the catalog failed."""


class WriteFailedError(UnavailableError):
    """A write or a sync of the WAL failed. Nothing more is appended until the partition is reopened."""


class PartlyAppendedError(WriteFailedError):
    """Only some of the records for several partitions were appended, because a disk failed in between.

    `appended` has the first and the last offset of the records of each partition that has them.
    """

    def __init__(self, message: str, *, appended: Mapping[int, tuple[int, int]] | None = None) -> None:
        super().__init__(message)
        self.appended = dict(appended or {})


class CorruptError(LastwordError):
    """Stored bytes are damaged. `path` and `offset` say where. The message says what to do."""

    def __init__(self, message: str, *, path: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class ClosedError(LastwordError):
    """The object has been closed."""
