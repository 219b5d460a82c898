"""`lastword backup` and `lastword restore`: without a server, beside one, and what clients of the restored one see."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse
from tests.support.cli import Cli
from tests.support.kafka_clients import PATIENCE_S, consume_in_group, produce
from tests.support.raw_client import RawClient
from tests.support.server import SETTINGS, serving
from tests.support.waiting import wait_until

import lastword
from lastword.maintenance.backup.belongings import COPIED, COPIED_FOLDERS, CREATED, IN_PART, LEFT_OUT


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made = Cli(tmp_path / "data")
    made("topic", "create", "users", "--cleanup-policy", "compact", "--partitions", "2")
    made("produce", "users", stdin=b"alice:Oslo\nbob:Rome\n")
    made("topic", "seal", "users")
    made("produce", "users", stdin=b"alice:Bergen\ncarol:Bern\n")
    return made


def test_a_backup_and_what_is_made_of_it(cli: Cli, tmp_path: Path) -> None:
    to = tmp_path / "backups"
    before = cli("consume", "users", "--json").out
    made = cli("backup", str(to)).out
    assert made.startswith("Made the backup 2") and f"in {to}.\n" in made
    assert "topics         1\n" in made and "already there  0 files\n" in made
    again = cli.json("backup", "create", str(to), "--keep", "1")
    assert (again["copied_files"], len(again["removed_backups"]), again["problems"]) == (0, 1, [])
    assert [topic["topic"] for topic in again["topics"]] == ["users"]
    listed = cli.json("backup", "list", str(to))
    assert [each["backup"] for each in listed["backups"]] == [again["backup"]]
    assert again["backup"] in cli("backup", "list", str(to)).out
    other = Cli(tmp_path / "restored")
    restored = other("restore", str(to)).out
    assert restored.startswith(f"Restored the backup {again['backup']} to {other.data}.\n")
    assert other("consume", "users", "--json").out == before
    other("topic", "delete", "users", "--yes")
    assert cli("consume", "users", "--json").out == before
    third = Cli(tmp_path / "third").json("restore", str(to), "--warehouse", str(tmp_path / "warehouse"))
    assert third["warehouse"] == str(tmp_path / "warehouse")
    assert Cli(tmp_path / "third")("consume", "users", "--json").out == before


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("backup",), 2, "Missing argument 'TO'"),
        (("backup", ""), 2, "The name of the place is empty"),
        (("backup", "--keep", "1", "PLACE/new"), 0, ""),
        (("backup", "list", "PLACE/none"), 0, ""),
        (("restore", "PLACE/none"), 2, "There is no backup in"),
        (("restore", "PLACE/backups"), 2, "is not empty"),
        (("backup", "PLACE/backups", "--keep", "0"), 2, "--keep"),
        (("backup", "s3://"), 2, "is not a place for backups"),
        (("backup", "PLACE/backups", "--property", "s3.region"), 2, "must be KEY=VALUE"),
        (("backup", "PLACE/data/backups"), 2, "is inside the data folder"),
        (("backup", "PLACE/file/backups"), 3, "Can't write"),
        (("backup", "/proc/backups"), 3, "Can't write /proc/backups"),
    ],
)
def test_what_is_wrong_is_said(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    cli("backup", str(tmp_path / "backups"))
    (tmp_path / "file").write_text("")
    found = cli(*(each.replace("PLACE", str(tmp_path)) for each in arguments), code=code)
    assert message in found.err


def test_a_damaged_file_is_named(cli: Cli, tmp_path: Path) -> None:
    cli("backup", str(tmp_path / "backups"))
    damaged = next((tmp_path / "backups").glob("data/**/*.parquet"))
    damaged.unlink()
    found = Cli(tmp_path / "restored")("restore", str(tmp_path / "backups"), "--json", code=4)
    assert damaged.name in found.error["message"]
    assert not (tmp_path / "restored").exists()


def test_a_topic_that_is_left_out_is_named(cli: Cli, tmp_path: Path) -> None:
    cli("topic", "create", "lost")
    cli("produce", "lost", stdin=b"a:b\n")
    next((cli.data / "wal/default/lost").glob("*/0/wal.*.log")).unlink()
    found = cli("backup", str(tmp_path / "backups"), code=1)
    assert "topic 'lost' is not in the backup: No WAL file" in found.out
    assert "lost" in cli("backup", "list", str(tmp_path / "backups")).out
    assert "Missing" in Cli(tmp_path / "restored")("restore", str(tmp_path / "backups")).out


def test_beside_a_server_and_clients_of_the_restored_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cli, other = Cli(tmp_path / "data"), Cli(tmp_path / "restored")
    with serving(cli.data) as server:
        cli("topic", "create", "t")
        produce(server.kafka, "t", [str(number) for number in range(10)])
        cli("topic", "seal", "t")
        produce(server.kafka, "t", [str(number) for number in range(10, 15)])
        read = consume_in_group(server.kafka, "t", "g", partitions=1, count=12)
        assert len(read) == 12
        # A path of this process, which the server's worker does not share.
        made = cli.json("backup", "backups")
        assert made["place"] == str(tmp_path / "backups") and made["problems"] == []
        assert sorted(each["topic"] for each in made["topics"]) == ["__lastword_groups", "t"]
        with server.client() as client:
            asked = client.post("/v1/backup", json={"to": str(tmp_path / "backups"), "keep": 5})
            assert asked.status_code == 200 and asked.json()["copied_files"] == 0
            refused = client.post("/v1/backup", json={"to": "backups"})
            assert refused.status_code == 400 and "must be an absolute path" in refused.json()["detail"]
        # What comes later is not in it, and a consumer that has read it is ahead.
        produce(server.kafka, "t", [str(number) for number in range(15, 20)])
        first_id = _new_producer_id(server.kafka)
        # Of everything that a folder has it is known whether it belongs into a backup.
        known = {*COPIED, *COPIED_FOLDERS, *IN_PART, *CREATED, *LEFT_OUT}
        assert {each.name for each in cli.data.iterdir()} - known == set()
        cluster_id = (cli.data / "cluster.id").read_text()
    other("restore", "backups", "--backup", made["backup"])
    assert (other.data / "cluster.id").read_text() == cluster_id
    assert (
        json.loads((other.data / "IDENTITY").read_text())["id"]
        != json.loads((cli.data / "IDENTITY").read_text())["id"]
    )
    with serving(other.data, settings="") as server:
        # The group goes on where it had committed.
        rest = consume_in_group(server.kafka, "t", "g", partitions=1, count=None)
        assert [each[0][1] for each in rest] == [12, 13, 14]
        # One that keeps its own position beyond the end is told so.
        assert _error_at(server.kafka, "t", 19) == KafkaError._AUTO_OFFSET_RESET
        # Idempotent producers go on, under ids that the original can't give.
        assert _new_producer_id(server.kafka) > first_id + 1_000_000
        assert _produce_idempotently(server.kafka, "t", "again") == 15


BUSY = f"""\
{SETTINGS}
local.retention.ms: 0
tiering.lag.ms: 100
seal.interval.ms: 100
deleter.interval.ms: 100
segment.bytes: 20000
"""


class Producing:
    """Produces numbers, one after the other, until it is told to end; `acknowledged` is the last that was."""

    def __init__(self, address: str) -> None:
        self.acknowledged = -1
        self._producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Producing:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._producer.produce("t", str(number), f"k{number}", on_delivery=self._delivered)
            self._producer.poll(0.001)
            number += 1
        assert self._producer.flush(PATIENCE_S) == 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None
        self.acknowledged = message.offset()


def test_backups_of_a_server_that_produces_seals_and_deletes_its_wal(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    made: list[tuple[str, int]] = []
    with serving(cli.data, settings=BUSY) as server:
        cli("topic", "create", "t")
        with Producing(server.kafka) as producing:
            for _ in range(3):
                enough = producing.acknowledged + 500
                wait_until(lambda enough=enough: producing.acknowledged > enough, "more is produced")
                before = producing.acknowledged
                made.append((cli.json("backup", str(tmp_path / "backups"))["backup"], before))
    for backup, before in made:
        restored = Cli(tmp_path / backup)
        restored("restore", str(tmp_path / "backups"), "--backup", backup)
        with lastword.open(restored.data, read_only=True) as log:
            found = [(each.offset, int(each.value or b"")) for each in log.topic("t").read()]
        assert found == [(number, number) for number in range(len(found))] and len(found) > before


def _new_producer_id(address: str) -> int:
    wanted = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    with RawClient(address) as client:
        return int(client.ask(wanted, InitProducerIdResponse, 1).producer_id)


def _error_at(address: str, topic: str, offset: int) -> int | None:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "own", "auto.offset.reset": "error", "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    codes: list[int] = []

    def told() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is not None:
            codes.append(message.error().code())
        return bool(codes)

    try:
        wait_until(told, "the consumer is told that its position is out of range")
    finally:
        consumer.close()
    return codes[0]


def _produce_idempotently(address: str, topic: str, value: str) -> int:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0})
    offsets: list[int] = []
    producer.produce(
        topic, key=value, value=value, on_delivery=lambda _, message: offsets.append(message.offset())
    )
    assert producer.flush(PATIENCE_S) == 0
    return offsets[0]
