"""The operations that a client is authorized for on a cluster, a topic and a group.

There is no access control, so every client may perform every operation that exists for the resource type. This is
Kafka's answer without an authorizer. The numbers are those of Kafka's AclOperation. Only clients that request them get them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class AclOperation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


ON_CLUSTER: Final = frozenset(
    {
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    }
)
ON_TOPIC: Final = frozenset(
    {
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    }
)
ON_GROUP: Final = frozenset(
    {
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    }
)


def if_asked(operations: frozenset[AclOperation], asked: object) -> frozenset[AclOperation] | None:
    """Return the operations for an answer, or None, sent as Kafka's -2147483648, if they were not requested."""
    return operations if asked else None


def bits(operations: frozenset[AclOperation]) -> int:
    """Return the operations as one number, for answers whose field the codec treats as a plain number."""
    return sum(1 << operation for operation in operations)
