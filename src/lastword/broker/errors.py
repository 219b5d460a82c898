"""Kafka's error codes for Lastword's errors."""

from __future__ import annotations

from enum import IntEnum

from lastword.batch import BadBatchError
from lastword.errors import (
    ClosedError,
    CorruptError,
    FencedProducerError,
    InvalidConfigError,
    InvalidError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    NotOwnerError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    TopicExistsError,
    UnavailableError,
    UnknownPartitionError,
    UnknownTopicError,
    WriteFailedError,
)
from lastword.log.lifecycle import UndecidedError


class ErrorCode(IntEnum):
    """The Kafka error codes that the broker returns."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    INVALID_TOPIC_EXCEPTION = 17
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNKNOWN_TOPIC_ID = 100
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115


# The first type that matches an error counts, so narrower types come first.
_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (UnknownTopicError, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (UnknownPartitionError, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (TopicExistsError, ErrorCode.TOPIC_ALREADY_EXISTS),
    (InvalidTopicError, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (InvalidConfigError, ErrorCode.INVALID_CONFIG),
    (BadBatchError, ErrorCode.CORRUPT_MESSAGE),
    (InvalidTimestampError, ErrorCode.INVALID_TIMESTAMP),
    (RecordTooLargeError, ErrorCode.MESSAGE_TOO_LARGE),
    (OutOfOrderSequenceError, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (FencedProducerError, ErrorCode.INVALID_PRODUCER_EPOCH),
    (InvalidRecordError, ErrorCode.INVALID_RECORD),
    (OffsetOutOfRangeError, ErrorCode.OFFSET_OUT_OF_RANGE),
    (InvalidError, ErrorCode.INVALID_REQUEST),
    (CorruptError, ErrorCode.CORRUPT_MESSAGE),
    # Clients retry after this and ClosedError: the partition may be reopened, and a closed log is being restarted.
    (WriteFailedError, ErrorCode.KAFKA_STORAGE_ERROR),
    # Another data folder owns the topic: clients look for its broker.
    (NotOwnerError, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    # It may have happened, or not. After a storage error it has not.
    (UndecidedError, ErrorCode.REQUEST_TIMED_OUT),
    (UnavailableError, ErrorCode.KAFKA_STORAGE_ERROR),
    (ClosedError, ErrorCode.LEADER_NOT_AVAILABLE),
    # The system refused something, such as another open file: clients retry.
    (OSError, ErrorCode.KAFKA_STORAGE_ERROR),
)


class RefusedError(InvalidError):
    """A refused request for which Kafka has a specific code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: Exception) -> ErrorCode:
    """Return Kafka's code for an error."""
    if isinstance(error, RefusedError):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
