"""The admin API of a real server, over HTTP."""

from __future__ import annotations

import base64
import http.client
import json
import re
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.support.cli import Cli
from tests.support.server import SETTINGS, Server, serving
from tests.support.waiting import wait_until

SLOW = "seal.interval.ms: 3600000\nworker.initial.delay.ms: 3600000\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("admin") / "data", settings=SETTINGS + SLOW) as started:
        yield started


@pytest.fixture
def api(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def topic(api: httpx.Client, request: pytest.FixtureRequest) -> str:
    """A new compacted topic of two partitions. Only runs compact it, sealing does not."""
    name = re.sub(r"\W+", "-", request.node.name)[:200]
    config = {"cleanup.policy": "compact", "compaction.at.seal": "false"}
    made = api.post("/v1/topics", json={"name": name, "partitions": 2, "config": config})
    assert made.status_code == 201
    return name


def produce(api: httpx.Client, topic: str, *records: dict[str, Any], **more: Any) -> httpx.Response:
    return api.post(f"/v1/topics/{topic}/records", json={"records": list(records), **more})


def detail(answer: httpx.Response, status: int) -> str:
    """The message of a problem document."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert found["status"] == status
    assert found["type"] == f"urn:lastword:error:{found['error']}"
    return str(found["detail"])


def events(api: httpx.Client, path: str, body: dict[str, Any]) -> list[tuple[str, Any]]:
    found = []
    with api.stream("POST", path, json=body, headers={"Accept": "text/event-stream"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((name, json.loads(line.removeprefix("data: "))))
    return found


# --------------------------------------------------------------------------------------------- topics


def test_a_topic_from_its_creation_to_its_deletion(api: httpx.Client, topic: str) -> None:
    assert topic in [each["name"] for each in api.get("/v1/topics").json()]
    changed = api.patch(
        f"/v1/topics/{topic}", json={"set": {"segment.bytes": "1000000"}, "partitions": 3}
    ).json()
    assert changed["partitions"] == {"before": 2, "after": 3}
    assert changed["changed"]["segment.bytes"]["after"] == {"value": "1000000", "source": "topic"}
    assert "keys that move to another partition" in changed["warning"]
    described = api.get(f"/v1/topics/{topic}").json()
    assert len(described["partitions"]) == 3
    assert {"key": "segment.bytes", "value": "1000000", "source": "topic", "where": ""} in api.get(
        f"/v1/topics/{topic}/config"
    ).json()
    assert api.delete(f"/v1/topics/{topic}").json() == {"topic": topic, "deleted": True}
    assert detail(api.get(f"/v1/topics/{topic}"), 404)


def test_errors_name_the_field_the_value_and_what_is_allowed(api: httpx.Client, topic: str) -> None:
    assert "there is no such topic" in detail(api.get("/v1/topics/nix"), 404)
    assert detail(api.post("/v1/topics", json={"name": topic}), 409)
    said = detail(api.post("/v1/topics", json={"name": 5, "partition": 1}), 422)
    assert "name: " in said
    assert "partition: " in said
    bad = {"name": "bad", "config": {"retention.ms": "soon"}}
    assert "retention.ms is 'soon'; allowed: a whole number" in detail(api.post("/v1/topics", json=bad), 400)
    assert "nothing to change" in detail(api.patch(f"/v1/topics/{topic}", json={}), 400)
    assert "nothing is served at /v1/nix" in detail(api.get("/v1/nix"), 404)
    assert "PUT /v1/topics" in detail(api.put("/v1/topics", json={}), 405)
    not_json = api.post("/v1/topics", content=b"{", headers={"Content-Type": "application/json"})
    assert detail(not_json, 422)
    assert "max" in detail(api.get(f"/v1/topics/{topic}/records?max=100000000"), 422)


def test_internal_topics_are_refused(api: httpx.Client) -> None:
    assert detail(api.post("/v1/topics", json={"name": "__lastword_mine"}), 400)


# -------------------------------------------------------------------------------------------- records


def test_records_go_in_and_come_out_again(api: httpx.Client, topic: str) -> None:
    answer = produce(
        api,
        topic,
        {
            "key": "a",
            "value": "1",
            "headers": {"h": "x"},
            "timestamp": "2026-01-31T12:00:00Z",
            "partition": 0,
        },
        {"key_base64": base64.b64encode(b"\xff").decode(), "value": None, "partition": 0},
        {"value": "no key", "partition": 1},
        compression="zstd",
    ).json()
    assert answer["positions"] == [
        {"partition": 0, "offset": 0},
        {"partition": 0, "offset": 1},
        {"partition": 1, "offset": 0},
    ]
    found = api.get(f"/v1/topics/{topic}/records", params={"partition": 0}).json()
    assert [each.get("key") for each in found["records"]] == ["a", None]
    assert found["records"][0]["timestamp"] == 1769860800000
    assert found["records"][1]["key_base64"] == "/w=="
    assert found["next"] == {"0": 2}
    page = api.get(f"/v1/topics/{topic}/records", params={"partition": 0, "max": 1, "from": "1"}).json()
    assert [each["offset"] for each in page["records"]] == [1]
    state = api.get(f"/v1/topics/{topic}/records", params={"state": True}).json()
    assert [each["value"] for each in state["records"]] == ["1"]
    late = api.get(f"/v1/topics/{topic}/records", params={"from_time": "2026-02-01T00:00:00Z"}).json()
    assert len(late["records"]) == 2
    few = api.get(f"/v1/topics/{topic}/records", params={"max_bytes": 1, "partition": 0}).json()
    assert len(few["records"]) == 1
    assert few["next"] == {"0": 1}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"from": "1", "from_time": "1"}, "from and from_time both set the start; give one of them."),
        ({"from": "first"}, "from is 'first'; allowed: earliest"),
        ({"from": "1"}, "say which with partition"),
        ({"as_of": "1"}, "say which with partition, or give a time"),
        ({"as_of": "yesterday"}, "as_of is 'yesterday'; allowed: an offset"),
        (
            {"as_of": "1", "from": "1"},
            "as_of shows the past from the log start on; only state, after_key_base64, partition, max and max_bytes can",
        ),
        (
            {"state": True, "partition": 0},
            "state covers the whole topic; only after_key_base64, max, max_bytes and as_of can be used with it.",
        ),
        ({"after_key_base64": "YQ=="}, "after_key_base64 continues a read of the state."),
        ({"after_key_base64": "%"}, "after_key_base64 '%' is not base64"),
    ],
)
def test_a_read_that_makes_no_sense_is_refused_in_terms_of_its_parameters(
    api: httpx.Client, topic: str, given: dict[str, str], said: str
) -> None:
    found = detail(api.get(f"/v1/topics/{topic}/records", params=given), 400)
    assert said in found
    assert "--" not in found


def test_records_are_appended_all_or_none(api: httpx.Client, topic: str) -> None:
    good = {"key": "a", "value": "1", "partition": 0}
    said = detail(produce(api, topic, good, {"key": 3, "value": "x"}), 400)
    assert 'records.1: "key" must be text' in said
    assert detail(produce(api, topic, good, {"key": "b", "value": "2", "partition": 9}), 404)
    assert detail(produce(api, topic, good, {"key": "b", "value": "x" * 2_000_000, "partition": 1}), 413)
    assert produce(api, topic, good, check_only=True).json()["positions"] == []
    assert api.get(f"/v1/topics/{topic}/records").json()["records"] == []


def test_a_body_without_bound_is_refused(api: httpx.Client, topic: str) -> None:
    def forever() -> Iterator[bytes]:
        yield b'{"records": ['
        for _ in range(100):
            yield b" " * (1 << 20)

    headers = {"Content-Type": "application/json"}
    answer = api.post(f"/v1/topics/{topic}/records", content=forever(), headers=headers)
    assert "larger than" in detail(answer, 413)
    connection = http.client.HTTPConnection(api.base_url.host, api.base_url.port or 0)
    connection.putrequest("POST", f"/v1/topics/{topic}/records")
    for name, value in {**headers, "Content-Length": str(1 << 40)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


# ---------------------------------------------------------------------------------------- maintenance


def test_what_takes_long_says_how_it_goes_as_events(api: httpx.Client, topic: str) -> None:
    produce(api, topic, *({"key": f"k{index % 3}", "value": str(index)} for index in range(300)))
    found = events(api, f"/v1/topics/{topic}/compact", {})
    assert [name for name, _ in found][-1] == "result"
    assert {name for name, _ in found[:-1]} <= {"progress"}
    result = found[-1][1]
    assert result["sealed"]["records"] == 300
    assert result["total"]["records_after"] == 3
    ((name, problem),) = events(api, "/v1/topics/nix/seal", {})
    assert (name, problem["error"]) == ("problem", "UnknownTopicError")


def test_without_events_the_answer_is_the_result(api: httpx.Client, topic: str) -> None:
    produce(api, topic, {"key": "a", "value": "1"}, {"key": "a", "value": "2"})
    assert api.post(f"/v1/topics/{topic}/seal", json={}).json()["records"] == 2
    plan = api.post(f"/v1/topics/{topic}/compact", json={"dry_run": True}).json()
    assert plan["dry_run"] is True
    assert plan["partitions"][0]["estimate"]["garbage_records"] == 1
    assert api.get(f"/v1/topics/{topic}/history").json()["snapshots"][-1]["operation"] == "seal"
    assert api.post(f"/v1/topics/{topic}/compact", json={}).json()["total"]["records_after"] == 1
    assert api.post("/v1/compact", json={"all": True, "dry_run": True}).json()["dry_run"] is True
    assert api.post("/v1/retention", json={"dry_run": True, "topics": [topic]}).json()["problems"] == []
    assert detail(api.post(f"/v1/topics/{topic}/compact", json={"partitions": [9]}), 404)
    assert detail(api.post("/v1/retention", json={"topics": ["nix"]}), 404)


def test_erase_leaves_nothing_and_says_so(api: httpx.Client, topic: str, server: Server) -> None:
    produce(api, topic, {"key": "secret-key", "value": "1"}, {"key": "other", "value": "2"})
    assert detail(api.post(f"/v1/topics/{topic}/erase", json={}), 400)
    assert "is not base64" in detail(api.post(f"/v1/topics/{topic}/erase", json={"keys_base64": ["?"]}), 400)
    report = api.post(f"/v1/topics/{topic}/erase", json={"keys": ["secret-key"]}).json()
    assert report["erased"] is True
    assert report["records_erased"] == 1
    left = [each["key"] for each in api.get(f"/v1/topics/{topic}/records").json()["records"]]
    assert left == ["other"]
    files = [path for path in server.data.rglob("*") if path.is_file()]
    assert not [path for path in files if b"secret-key" in path.read_bytes()]


def test_delete_records_and_wal(api: httpx.Client, topic: str) -> None:
    produce(api, topic, *({"value": str(index), "partition": 0} for index in range(5)))
    deleted = api.post(f"/v1/topics/{topic}/delete-records", json={"partition": 0, "before": 3}).json()
    assert (deleted["log_start_before"], deleted["log_start"]) == (0, 3)
    (wal,) = api.get("/v1/wal", params={"topic": topic}).json()
    assert wal["partitions"][0]["files"][0]["state"] == "active"
    assert api.get(f"/v1/topics/{topic}/wal/damage").json()["damage"] == []
    assert api.post(f"/v1/topics/{topic}/wal/skip-damage", json={}).json()["damage"] == []


def test_every_job_of_the_worker_at_once(api: httpx.Client, topic: str) -> None:
    produce(api, topic, {"key": "a", "value": "1"})
    status = api.post("/v1/worker/run", json={}).json()
    assert all(job["last_error"] is None for job in status["jobs"].values())
    found = api.get("/v1/status").json()
    assert found["ready"] is True
    assert found["worker"]["jobs"]["compact"]["last_run_ms"] is not None


def test_a_compaction_whose_asker_goes_away_ends_and_the_next_one_runs(api: httpx.Client, topic: str) -> None:
    produce(api, topic, *({"key": f"k{index % 3}", "value": str(index)} for index in range(300)))
    with api.stream(
        "POST", f"/v1/topics/{topic}/compact", json={}, headers={"Accept": "text/event-stream"}
    ) as answer:
        next(answer.iter_lines(), None)
    result = api.post(f"/v1/topics/{topic}/compact", json={"force": True}).json()
    assert {each["problem"] for each in result["partitions"]} == {None}
    assert sum(each["sealed_records"] for each in api.get(f"/v1/topics/{topic}").json()["partitions"]) == 3


# ------------------------------------------------------------------------------------------- consumer groups


def test_groups_are_listed_described_and_deleted(api: httpx.Client, topic: str, server: Server) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    produce(
        api, topic, {"key": "a", "value": "1", "partition": 0}, {"key": "a", "value": "2", "partition": 0}
    )
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.kafka, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        wait_until(
            lambda: (got := consumer.poll(0.2)) is not None and got.error() is None, lambda: server.log
        )
        consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 1)], asynchronous=False)
        assert "readers" in [each["group"] for each in api.get("/v1/groups").json()]
        found = api.get("/v1/groups/readers").json()
        assert found["state"] == "Stable"
        assert len(found["member_list"]) == 1
        (offset,) = [each for each in found["offsets"] if each["partition"] == 0]
        assert (offset["offset"], offset["log_end"], offset["behind"]) == (1, 2, 1)
        (member,) = found["member_list"]
        assert offset["member_id"] == member["member_id"]
        assert {"topic": topic, "partition": 0} in member["partitions"]
        (listed,) = [each for each in api.get("/v1/groups").json() if each["group"] == "readers"]
        assert listed["topics"] == [topic]
        assert listed["behind"] == sum(each["behind"] for each in found["offsets"])
        line = f'lastword_group_lag{{group="readers",partition="0",topic="{topic}"}} 1.0'
        assert line in api.get("/metrics").text
        assert "has members" in detail(api.delete("/v1/groups/readers"), 400)
    finally:
        consumer.close()
    wait_until(lambda: api.get("/v1/groups/readers").json()["state"] == "Empty")
    assert api.delete("/v1/groups/readers").json() == {"group": "readers", "deleted": True}
    assert "there is no group" in detail(api.get("/v1/groups/readers"), 404)
    assert "there is no group" in detail(api.delete("/v1/groups/readers"), 404)


@pytest.mark.parametrize(
    "group",
    ["team/readers", "readers/", "a/../b", "ü?x=1&y#z", "a%2Fb"],
    ids=["slash", "slash-at-the-end", "dots", "signs", "percent"],
)
def test_any_text_may_be_a_groups_id(api: httpx.Client, topic: str, server: Server, group: str) -> None:
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": group, "log_level": 0})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    finally:
        consumer.close()
    path = f"/v1/groups/{quote(group, safe='')}"
    assert api.get(path).json()["group"] == group
    assert api.delete(path).json() == {"group": group, "deleted": True}
    assert detail(api.get(path), 404) == f"there is no group {group!r}"


# ------------------------------------------------------------------------------------- who may ask, health


def test_a_web_page_can_neither_ask_nor_change_anything(api: httpx.Client, server: Server) -> None:
    assert "evil.example.com" in detail(api.get("/v1/topics", headers={"Host": "evil.example.com"}), 421)
    assert detail(api.get("/metrics", headers={"Host": "evil.example.com:9644"}), 421)
    assert detail(api.get("/v1/topics", headers={"Origin": "http://evil.example.com"}), 403)
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        headers = {"Content-Type": content_type} if content_type else {}
        answer = api.post("/v1/topics", content=b'{"name": "csrf"}', headers=headers)
        assert "allowed: application/json" in detail(answer, 415)
    assert "csrf" not in Cli(server.data)("topic", "list").out
    own = {"Origin": server.url}
    assert api.get("/v1/topics", headers=own).status_code == 200
    assert api.get("/v1/topics", headers={"Host": "localhost:1"}).status_code == 200


def test_metrics_are_those_of_all_processes(api: httpx.Client, topic: str) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    produce(api, topic, *({"key": f"k{index % 3}", "value": str(index)} for index in range(30)))
    api.post(f"/v1/topics/{topic}/compact", json={})
    api.post("/v1/worker/run", json={})
    answer = api.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, sample.labels.get("topic")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["lastword_append_records_total", topic] == 30
    assert samples["lastword_tiering_segments_sealed_total", topic] >= 1
    assert samples["lastword_log_cleaner_compactions_total", topic] >= 1
    assert samples["lastword_topic_bytes", topic] > 0
    assert samples["lastword_tiering_lag_seconds", topic] == 0
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    series = [line.rpartition(" ")[0] for line in lines]
    assert len(series) == len(set(series))


def test_slow_admin_requests_don_t_hold_up_others(api: httpx.Client, server: Server, topic: str) -> None:
    """Twenty at once that are served by threads, while the health of the broker's loop is asked for."""
    produce(api, topic, *({"key": f"k{index}", "value": "x" * 100} for index in range(2000)))
    codes: list[int] = []

    def read() -> None:
        codes.append(httpx.get(f"{server.url}/v1/topics/{topic}/records?max=2000", timeout=180).status_code)

    threads = [threading.Thread(target=read) for _ in range(20)]
    for each in threads:
        each.start()
    assert httpx.get(f"{server.url}/healthz", timeout=180).status_code == 200
    for each in threads:
        each.join()
    assert codes == [200] * 20


def test_openapi_describes_every_path(api: httpx.Client) -> None:
    found = api.get("/openapi.json").json()
    assert found["openapi"].startswith("3.")
    operations = [
        (method.upper(), path, operation)
        for path, methods in found["paths"].items()
        for method, operation in methods.items()
    ]
    assert len(operations) > 25
    for method, path, operation in operations:
        assert operation.get("description"), (method, path)
        assert "application/problem+json" in operation["responses"]["default"]["content"]
        assert path.startswith("/v1/") or path in ("/metrics", "/healthz", "/readyz")
        # What it describes is there: no path answers that nothing is served at it.
        asked = re.sub(r"\{\w+\}", "nix", path)
        if method == "GET":
            assert "nothing is served" not in api.get(asked).text
    page = api.get("/docs").text
    for _, path, _ in operations:
        assert f"<code>{path}</code>" in page
    assert "body: name, partitions, config" in page
    assert "<script" not in page
    assert "http://" not in page.replace("http-equiv", "") and "https://" not in page
