"""The table of operations: the requests that a log takes, the process that handles each, and its path.

Four channels are built from it, and none repeats the definition of an operation:

    cli/direct.py     a command opens the log in the operation's role and calls its function
    cli/remote.py     a command beside a server asks the server's admin API
    admin/app.py      the admin API runs short operations on the broker's log, and asks the worker for the others
    serve/worker_process.py   the worker's process runs operations by name

The function is the operation: its parameters are the request, and its docstring is its description in the API's
documentation. A long-running function takes `progress`, and one that can end early takes `stop`. These two are never
sent to another process.

Three things are not in it. `status` is about the processes, and must work before there is a log. `consume` reads without
a limit and without any role, so that a command does it beside a server as well; over HTTP it answers page by page. The
worker's channel also has requests about its own process.
"""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar
from urllib.parse import quote

from lastword.operations import (
    appending,
    backups,
    cleaning,
    compaction,
    connectors,
    describing,
    explaining,
    groups,
    topics,
    wal,
    working,
)
from lastword.operations.compaction import Stop, never
from lastword.operations.topics import OnProgress, no_progress
from lastword.record_json import Json, Parsed, parsed_data

P = ParamSpec("P")
R = TypeVar("R")

Role = Literal["read", "write", "create", "maintain", "work", "folder", "settings"]
"""How the log must be open: for reading, for writing (`create`: also if there is no log yet), or for maintenance. Or the
function takes something else than a log: its worker, or its folder or settings, which may be there before the log is."""

Process = Literal["broker", "coordinator", "worker"]
"""Which part of a server answers: the broker's process on its log; the same with the help of the coordinator of groups,
which knows more than the log (admin/app.py); or the worker's process, if it takes long."""

Verb = Literal["GET", "POST", "PATCH", "DELETE"]

_WITHIN_A_PROCESS = ("progress", "stop")
_BASE64 = "_base64"
_IN_PATH = re.compile(r"{(\w+)(?::path)?}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[P, R]):
    """An operation on a log. A dry run needs no role."""

    name: str
    function: Callable[Concatenate[Any, P], R]
    role: Role
    verb: Verb
    path: str
    process: Process = "broker"
    may_use_spark: bool = False
    called: Mapping[str, str] = field(default_factory=dict)
    """Parameters that have a different name in the API."""

    def request(self, *args: P.args, **kwargs: P.kwargs) -> Json:
        """Return a call's arguments as JSON values, without those that never leave a process."""
        bound = inspect.signature(self.function).bind(None, *args, **kwargs)
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        return dict(_to_json(name, value) for name, value in given.items() if name not in _WITHIN_A_PROCESS)

    def call(self, target: Any, request: Json, progress: OnProgress = no_progress, stop: Stop = never) -> R:
        """Run the operation for a request, on a log or on whatever its role is about."""
        given = dict(_from_json(name, value) for name, value in request.items())
        taken = inspect.signature(self.function).parameters
        own = {"progress": progress, "stop": stop}
        given |= {name: value for name, value in own.items() if name in taken}
        return self.function(target, **given)  # type: ignore[call-arg]

    def role_for(self, given: Mapping[str, object]) -> Role:
        return "read" if given.get("dry_run") else self.role

    @property
    def answer(self) -> Any:
        """The type of the result: a JSON object, or a list of them."""
        # The annotation is text.
        is_list = str(inspect.signature(self.function).return_annotation).startswith("list[")
        return list[Json] if is_list else Json

    @property
    def in_path(self) -> list[str]:
        """The parameters in the path."""
        return _IN_PATH.findall(self.path)

    def address(self, request: Json) -> tuple[str, Json]:
        """Return the path of a request in the API, and its other parameters there."""
        said = {self.called.get(name, name): value for name, value in request.items()}
        path = _IN_PATH.sub(lambda found: quote(str(said.pop(found[1])), safe=""), self.path)
        return path, said

    def heard(self, said: Json) -> Json:
        """Return the arguments for the parameters of an API call: the reverse of `address`."""
        names = {there: here for here, there in self.called.items()}
        return {names.get(name, name): value for name, value in said.items()}


def _to_json(name: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, bytes):
        return name + _BASE64, base64.b64encode(value).decode()
    if isinstance(value, list | tuple) and value and all(isinstance(each, bytes) for each in value):
        return name + _BASE64, [base64.b64encode(each).decode() for each in value]
    if isinstance(value, list | tuple) and all(isinstance(each, Parsed) for each in value):
        return name, [parsed_data(each) for each in value]
    return name, value


def _from_json(name: str, value: Any) -> tuple[str, Any]:
    if not name.endswith(_BASE64):
        return name, value
    plain = name.removesuffix(_BASE64)
    if isinstance(value, list):
        return plain, [base64.b64decode(each) for each in value]
    return plain, base64.b64decode(value)


OPERATIONS: dict[str, Operation[Any, Any]] = {}
"""All operations by name, as in the API's documentation and the worker's channel."""

_TOPIC = "/v1/topics/{topic}"
_OF_TOPIC = {"name": "topic"}


def _add(
    name: str,
    function: Callable[Concatenate[Any, P], R],
    role: Role,
    verb: Verb,
    path: str,
    called: Mapping[str, str] = _OF_TOPIC,
    *,
    process: Process = "broker",
    may_use_spark: bool = False,
) -> Operation[P, R]:
    made = Operation(
        name=name,
        function=function,
        role=role,
        verb=verb,
        path=path,
        called=called,
        process=process,
        may_use_spark=may_use_spark,
    )
    OPERATIONS[name] = made
    return made


LIST_TOPICS = _add("list_topics", topics.list_topics, "read", "GET", "/v1/topics")
CREATE_TOPIC = _add("create_topic", topics.create_topic, "create", "POST", "/v1/topics", {})
DESCRIBE_TOPIC = _add("describe_topic", describing.describe_topic, "read", "GET", _TOPIC)
ALTER_TOPIC = _add(
    "alter_topic", topics.alter_topic, "write", "PATCH", _TOPIC, {**_OF_TOPIC, "set_config": "set"}
)
DELETE_TOPIC = _add("delete_topic", topics.delete_topic, "write", "DELETE", _TOPIC)
REPAIR_PLAN = _add("repair_plan", topics.repair_plan, "read", "GET", f"{_TOPIC}/repair")
REPAIR_TOPIC = _add("repair_topic", topics.repair_topic, "write", "POST", f"{_TOPIC}/repair")
TOPIC_CONFIG = _add("topic_config", topics.topic_settings, "read", "GET", f"{_TOPIC}/config")
BROKER_CONFIG = _add("broker_config", topics.broker_settings, "settings", "GET", "/v1/config")
HISTORY = _add("history", topics.history, "read", "GET", f"{_TOPIC}/history")
PRODUCE = _add("produce", appending.append_records, "write", "POST", f"{_TOPIC}/records")
DELETE_RECORDS = _add("delete_records", topics.delete_records, "write", "POST", f"{_TOPIC}/delete-records")
SHOW_WAL = _add("show_wal", wal.show_wal, "read", "GET", "/v1/wal")
WAL_DAMAGE = _add("wal_damage", wal.wal_damage, "read", "GET", f"{_TOPIC}/wal/damage")
SKIP_DAMAGE = _add(
    "skip_damage", wal.skip_damage, "write", "POST", f"{_TOPIC}/wal/skip-damage", process="coordinator"
)
SEAL = _add("seal", topics.seal, "maintain", "POST", f"{_TOPIC}/seal", process="worker")
COMPACT_TOPIC = _add(
    "compact_topic",
    compaction.compact_topic,
    "maintain",
    "POST",
    f"{_TOPIC}/compact",
    process="worker",
    may_use_spark=True,
)
COMPACT_ALL = _add(
    "compact",
    compaction.compact_all,
    "maintain",
    "POST",
    "/v1/compact",
    {"all_dirty": "all"},
    process="worker",
    may_use_spark=True,
)
VERIFY = _add(
    "verify", compaction.verify, "read", "POST", f"{_TOPIC}/verify", process="worker", may_use_spark=True
)
ERASE = _add("erase", compaction.erase, "maintain", "POST", f"{_TOPIC}/erase", process="worker")
# It reads the keys of all segments. No produce request should wait for that.
EXPLAIN = _add(
    "explain",
    explaining.explain,
    "read",
    "GET",
    f"{_TOPIC}/explain",
    {**_OF_TOPIC, "from_offset": "from"},
    process="worker",
)
# It does not need the maintenance role: sealing and all other jobs continue beside it.
BACKUP = _add("backup", backups.make_backup, "read", "POST", "/v1/backup", process="worker")
RETENTION = _add("retention", cleaning.run_retention, "maintain", "POST", "/v1/retention", process="worker")
RUN_WORKER = _add("run_worker", working.run_worker, "work", "POST", "/v1/worker/run", process="worker")

# A group's id may be any text, even with slashes.
_GROUP = "/v1/groups/{group:path}"
LIST_GROUPS = _add("list_groups", groups.list_groups, "read", "GET", "/v1/groups", process="coordinator")
DESCRIBE_GROUP = _add("describe_group", groups.describe_group, "read", "GET", _GROUP, process="coordinator")
DELETE_GROUP = _add("delete_group", groups.delete_group, "write", "DELETE", _GROUP, process="coordinator")

_CONNECTOR = "/v1/connectors/{name}"
LIST_CONNECTORS = _add("list_connectors", connectors.list_connectors, "read", "GET", "/v1/connectors")
DESCRIBE_CONNECTOR = _add("describe_connector", connectors.describe_connector, "read", "GET", _CONNECTOR, {})
PAUSE_CONNECTOR = _add(
    "pause_connector", connectors.pause_connector, "folder", "POST", f"{_CONNECTOR}/pause", {}
)
RESUME_CONNECTOR = _add(
    "resume_connector", connectors.resume_connector, "folder", "POST", f"{_CONNECTOR}/resume", {}
)
