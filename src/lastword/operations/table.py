"""The table of operations: the requests that a log takes, the process that handles each, and its path.

Four channels are built from it, and none repeats the definition of an operation:

    cli/direct.py     a command opens the log in the operation's role and calls its function
    cli/remote.py     a command beside a server asks the server's admin API
    admin/app.py      the admin API runs short operations on the broker's log, and asks the worker for the others
    serve/worker.py   the worker's process runs operations by name

The function is the operation: its parameters are the request, and its docstring is its description in the API's
documentation. A long-running function takes `progress`, and one that can end early takes `stop`. These two are never
sent to another process.
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar
from urllib.parse import quote

from lastword.operations import backups, cleaning, compaction, describing, explaining, topics, wal
from lastword.operations.compaction import Stop, never
from lastword.operations.topics import OnProgress, no_progress
from lastword.record_json import Json

if TYPE_CHECKING:
    from lastword.log import Log

P = ParamSpec("P")
R = TypeVar("R")

Role = Literal["read", "write", "create", "maintain"]
"""How the log must be open: for reading, for writing (`create`: also if there is no log yet), or for maintenance."""

_WITHIN_A_PROCESS = ("progress", "stop")
_BASE64 = "_base64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[P, R]):
    """An operation on a log. A dry run needs no role."""

    name: str
    function: Callable[Concatenate[Log, P], R]
    role: Role
    verb: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    in_worker: bool = False
    """Whether a server's worker runs it, because it takes long and reports progress. Else the broker does."""
    may_use_spark: bool = False
    called: Mapping[str, str] = field(default_factory=dict)
    """Parameters that have a different name in the API."""

    def request(self, *args: P.args, **kwargs: P.kwargs) -> Json:
        """Return a call's arguments as JSON values, without those that never leave a process."""
        bound = inspect.signature(self.function).bind(None, *args, **kwargs)
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        return dict(_to_json(name, value) for name, value in given.items() if name not in _WITHIN_A_PROCESS)

    def call(self, log: Log, request: Json, progress: OnProgress = no_progress, stop: Stop = never) -> R:
        """Run the operation for a request."""
        given = dict(_from_json(name, value) for name, value in request.items())
        taken = inspect.signature(self.function).parameters
        own = {"progress": progress, "stop": stop}
        given |= {name: value for name, value in own.items() if name in taken}
        return self.function(log, **given)  # type: ignore[call-arg]

    def role_for(self, request: Json) -> Role:
        return "read" if request.get("dry_run") else self.role

    def address(self, request: Json) -> tuple[str, Json]:
        """Return the path of a request in the API, and its other parameters there."""
        said = {self.called.get(name, name): value for name, value in request.items()}
        path = self.path
        for name in [each for each in said if f"{{{each}}}" in path]:
            path = path.replace(f"{{{name}}}", quote(str(said.pop(name)), safe=""))
        return path, said

    def heard(self, said: Json) -> Json:
        """Return the request for the parameters of an API call: the reverse of `address`."""
        names = {there: here for here, there in self.called.items()}
        return {names.get(name, name): value for name, value in said.items()}


def _to_json(name: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, bytes):
        return name + _BASE64, base64.b64encode(value).decode()
    if isinstance(value, list | tuple) and value and all(isinstance(each, bytes) for each in value):
        return name + _BASE64, [base64.b64encode(each).decode() for each in value]
    return name, value


def _from_json(name: str, value: Any) -> tuple[str, Any]:
    if not name.endswith(_BASE64):
        return name, value
    plain = name.removesuffix(_BASE64)
    if isinstance(value, list):
        return plain, [base64.b64decode(each) for each in value]
    return plain, None if value is None else base64.b64decode(value)


_TOPIC = "/v1/topics/{topic}"
_OF_TOPIC = {"name": "topic"}

LIST_TOPICS = Operation(
    name="list_topics", function=topics.list_topics, role="read", verb="GET", path="/v1/topics"
)
CREATE_TOPIC = Operation(
    name="create_topic", function=topics.create_topic, role="create", verb="POST", path="/v1/topics"
)
DESCRIBE_TOPIC = Operation(
    name="describe_topic",
    function=describing.describe_topic,
    role="read",
    verb="GET",
    path=_TOPIC,
    called=_OF_TOPIC,
)
ALTER_TOPIC = Operation(
    name="alter_topic",
    function=topics.alter_topic,
    role="write",
    verb="PATCH",
    path=_TOPIC,
    called={**_OF_TOPIC, "set_config": "set"},
)
DELETE_TOPIC = Operation(
    name="delete_topic",
    function=topics.delete_topic,
    role="write",
    verb="DELETE",
    path=_TOPIC,
    called=_OF_TOPIC,
)
REPAIR_PLAN = Operation(
    name="repair_plan",
    function=topics.repair_plan,
    role="read",
    verb="GET",
    path=f"{_TOPIC}/repair",
    called=_OF_TOPIC,
)
REPAIR_TOPIC = Operation(
    name="repair_topic",
    function=topics.repair_topic,
    role="write",
    verb="POST",
    path=f"{_TOPIC}/repair",
    called=_OF_TOPIC,
)
TOPIC_CONFIG = Operation(
    name="topic_config",
    function=topics.topic_settings,
    role="read",
    verb="GET",
    path=f"{_TOPIC}/config",
    called=_OF_TOPIC,
)
HISTORY = Operation(
    name="history",
    function=topics.history,
    role="read",
    verb="GET",
    path=f"{_TOPIC}/history",
    called=_OF_TOPIC,
)
DELETE_RECORDS = Operation(
    name="delete_records",
    function=topics.delete_records,
    role="write",
    verb="POST",
    path=f"{_TOPIC}/delete-records",
    called=_OF_TOPIC,
)
SHOW_WAL = Operation(
    name="show_wal", function=wal.show_wal, role="read", verb="GET", path="/v1/wal", called=_OF_TOPIC
)
WAL_DAMAGE = Operation(
    name="wal_damage",
    function=wal.wal_damage,
    role="read",
    verb="GET",
    path=f"{_TOPIC}/wal/damage",
    called=_OF_TOPIC,
)
SEAL = Operation(
    name="seal",
    function=topics.seal,
    role="maintain",
    verb="POST",
    path=f"{_TOPIC}/seal",
    called=_OF_TOPIC,
    in_worker=True,
)
COMPACT_TOPIC = Operation(
    name="compact_topic",
    function=compaction.compact_topic,
    role="maintain",
    verb="POST",
    path=f"{_TOPIC}/compact",
    called=_OF_TOPIC,
    in_worker=True,
    may_use_spark=True,
)
COMPACT_ALL = Operation(
    name="compact",
    function=compaction.compact_all,
    role="maintain",
    verb="POST",
    path="/v1/compact",
    called={"all_dirty": "all"},
    in_worker=True,
    may_use_spark=True,
)
VERIFY = Operation(
    name="verify",
    function=compaction.verify,
    role="read",
    verb="POST",
    path=f"{_TOPIC}/verify",
    called=_OF_TOPIC,
    in_worker=True,
    may_use_spark=True,
)
ERASE = Operation(
    name="erase",
    function=compaction.erase,
    role="maintain",
    verb="POST",
    path=f"{_TOPIC}/erase",
    called=_OF_TOPIC,
    in_worker=True,
)
EXPLAIN = Operation(
    name="explain",
    function=explaining.explain,
    role="read",
    verb="GET",
    path=f"{_TOPIC}/explain",
    called={**_OF_TOPIC, "from_offset": "from"},
    in_worker=True,
)
BACKUP = Operation(
    # It does not need the maintenance role: sealing and all other jobs continue beside it.
    name="backup",
    function=backups.make_backup,
    role="read",
    verb="POST",
    path="/v1/backup",
    in_worker=True,
)
RETENTION = Operation(
    name="retention",
    function=cleaning.run_retention,
    role="maintain",
    verb="POST",
    path="/v1/retention",
    in_worker=True,
)

OPERATIONS: dict[str, Operation[Any, Any]] = {
    each.name: each
    for each in (
        LIST_TOPICS,
        CREATE_TOPIC,
        DESCRIBE_TOPIC,
        ALTER_TOPIC,
        DELETE_TOPIC,
        REPAIR_PLAN,
        REPAIR_TOPIC,
        TOPIC_CONFIG,
        HISTORY,
        DELETE_RECORDS,
        SHOW_WAL,
        WAL_DAMAGE,
        SEAL,
        COMPACT_TOPIC,
        COMPACT_ALL,
        VERIFY,
        ERASE,
        EXPLAIN,
        BACKUP,
        RETENTION,
    )
}
"""All operations by name, as in the API's documentation and the worker's channel."""
