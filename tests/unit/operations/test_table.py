"""The table of operations: what every channel is made from."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

from lastword.admin import models
from lastword.operations.table import (
    ALTER_TOPIC,
    COMPACT_ALL,
    COMPACT_TOPIC,
    DESCRIBE_GROUP,
    ERASE,
    EXPLAIN,
    LIST_TOPICS,
    OPERATIONS,
    PRODUCE,
    Operation,
)
from lastword.record_json import Json, parse_record

WITHIN = {"progress", "stop"}


def asked(operation: Operation[Any, Any]) -> set[str]:
    """The parameters of an operation, as the API calls them, but for those in its path."""
    own = set(list(inspect.signature(operation.function).parameters)[1:]) - WITHIN
    there = {operation.called.get(each, each) for each in own}
    in_path = set(operation.in_path)
    assert in_path <= there
    return there - in_path


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_request_says_what_the_function_takes(name: str) -> None:
    fields = models.REQUESTS.get(name, models.Nothing).model_fields
    said = {field.alias or each.removesuffix("_base64") for each, field in fields.items()}
    assert said == asked(OPERATIONS[name])


@pytest.mark.parametrize("name", OPERATIONS)
def test_it_says_what_it_does(name: str) -> None:
    assert OPERATIONS[name].function.__doc__
    assert set(models.REQUESTS) <= set(OPERATIONS)


def test_there_and_back() -> None:
    said = EXPLAIN.request("t", key=b"\xff", from_offset=3)
    assert said["key_base64"] == "/w==" and "key" not in said
    path, query = EXPLAIN.address(said)
    assert path == "/v1/topics/t/explain" and query["from"] == 3
    assert EXPLAIN.heard({**query, "topic": "t"}) == said


def test_records_are_sent_as_they_are_written_by_people() -> None:
    record = parse_record({"key": "a", "value": None, "partition": 1})
    said = PRODUCE.request("t", [record], check_only=True)
    assert said["records"] == [{"key": "a", "value": None, "partition": 1}]
    assert models.NewRecords(**PRODUCE.address(said)[1]).said()["records"] == [record]


def test_answers_are_objects_or_lists_of_them() -> None:
    assert (EXPLAIN.answer, LIST_TOPICS.answer) == (Json, list[Json])


def test_what_never_leaves_a_process() -> None:
    said = ERASE.request("t", [b"a", b"b"], progress=print)
    assert said == {"name": "t", "keys_base64": ["YQ==", "Yg=="]}
    seen: list[Any] = []

    def erase(log: object, name: str, keys: list[bytes], *, progress: object) -> None:
        seen.append((log, name, keys, progress))

    fake = Operation(name="erase", function=erase, role="maintain", verb="POST", path="/")  # type: ignore[arg-type]
    fake.call("a log", said, print)  # type: ignore[arg-type]
    assert seen == [("a log", "t", [b"a", b"b"], print)]


def test_names_that_are_not_fit_for_a_path() -> None:
    path, said = ALTER_TOPIC.address(
        ALTER_TOPIC.request("a/b c", set_config={"k": "v"}, unset=[], partitions=None)
    )
    assert path == "/v1/topics/a%2Fb%20c"
    assert DESCRIBE_GROUP.address({"group": "a/b"}) == ("/v1/groups/a%2Fb", {})
    assert said == {"set": {"k": "v"}, "unset": [], "partitions": None}


def test_a_dry_run_needs_no_role() -> None:
    assert COMPACT_TOPIC.role_for(COMPACT_TOPIC.request("t", dry_run=True)) == "read"
    assert COMPACT_TOPIC.role_for(COMPACT_TOPIC.request("t")) == "maintain"
    assert COMPACT_ALL.address(COMPACT_ALL.request(all_dirty=True)) == (
        "/v1/compact",
        {"all": True, "dry_run": False},
    )


def test_commands_beside_a_server_load_little_for_it() -> None:
    code = "import sys, lastword.operations.table; sys.exit(any(each in sys.modules for each in ('pyarrow', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
