"""Every command gives the same output, errors and exit code beside a server as without one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_cli_docs import COMMANDS
from tests.support.cli import Cli, Result
from tests.support.server import SETTINGS, Server, serving

from lastword.cli.backend import Backend
from lastword.cli.direct import Direct
from lastword.cli.options import Session
from lastword.cli.status import read_status

RECORDS = "".join(
    json.dumps({"key": f"k{index % 5}", "value": f"v{index}", "timestamp": 1_800_000_000_000 + index, **more})
    + "\n"
    for index in range(40)
    for more in [{"headers": {"h": "x"}} if index % 7 == 0 else {}]
).encode()
BINARY = b'{"key_base64": "/w==", "value": null, "timestamp": 1800000000100}\n'


@dataclass(frozen=True)
class Step:
    """A command line, and what is typed into it. `covers` is the command's name in the reference.

    {data} stands for the data folder.
    """

    line: str
    stdin: bytes = b""

    @property
    def covers(self) -> str:
        words = self.line.split()
        return " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]


STEPS = [
    Step("topic create users --partitions 2 --cleanup-policy compact"),
    Step("topic create users"),
    Step("topic create clicks --config retention.ms=1 --config local.retention.ms=0"),
    Step("topic create bad --config retention.ms=soon"),
    Step("topic create Users"),
    Step("topic create more.topics --partitions 0"),
    Step("topic list"),
    Step("produce users --jsonl", RECORDS),
    Step("produce users --jsonl --compression zstd", BINARY),
    Step("produce users --partition 7", b"a:1\n"),
    Step("produce users --jsonl", b'{"key": "a", "value": "1"}\n{"key": 3, "value": ""}\n'),
    Step("produce users --jsonl", b'{"key": "a", "value": "1", "timestamp": 99999999999999}\n'),
    Step("produce nix", b"a:1\n"),
    Step("produce clicks --no-key", b"one\ntwo\n"),
    Step("consume users --max 5 --partition 0"),
    Step("consume users --state"),
    Step("consume nix"),
    Step("topic describe users"),
    Step("topic describe nix"),
    Step("topic explain users --limit 5"),
    Step("topic explain nix"),
    Step("topic alter users --config min.cleanable.dirty.ratio=0.25 --partitions 3"),
    Step("topic alter users --delete-config retention.ms"),
    Step("topic alter users --partitions 1"),
    Step("topic alter users --config min.compaction.lag.ms=5 --config max.compaction.lag.ms=1"),
    Step("config show"),
    Step("config show --topic users"),
    Step("config show --topic nix"),
    Step("wal show users"),
    Step("wal show"),
    Step("wal repair users"),
    Step("topic compact users --dry-run"),
    Step("topic seal users"),
    Step("topic seal users"),
    Step("topic seal nix"),
    Step("topic compact users --dry-run"),
    Step("compact --dry-run"),
    Step("group list"),
    Step("group describe nix"),
    Step("group delete nix --yes"),
    Step("verify nix"),
    Step("topic create plain"),
    Step("verify plain"),
    Step("topic compact users"),
    Step("topic compact users"),
    Step("topic compact users --partition 9"),
    Step("topic compact users --force --no-seal"),
    Step("topic compact clicks"),
    Step("compact --all"),
    Step("compact --all --due"),
    Step("topic history users"),
    Step("topic history nix"),
    Step("topic describe users"),
    Step("retention run --dry-run"),
    Step("retention run"),
    Step("retention run --topic nix"),
    Step("erase users --key k1 --key k2 --yes"),
    Step("erase users --key-base64 /w== --yes"),
    Step("erase nix --key k1 --yes"),
    Step("erase users --key k3"),
    Step("topic delete-records users --partition 0 --before 3"),
    Step("topic delete-records users --partition 0 --before 1"),
    Step("topic delete-records users --partition 0 --before 1000"),
    Step("topic delete-records users --partition 9 --before 0"),
    Step("topic repair users"),
    Step("topic repair users --yes"),
    Step("topic repair nope"),
    Step("wal export users"),
    Step("wal export nix"),
    Step("backup create {data}-backups"),
    Step("backup list {data}-backups"),
    Step("backup list {data}-nothing"),
    Step("restore {data}-backups"),
    Step("relocate"),
    Step("takeover users"),
    Step("takeover nix"),
    Step("topic delete clicks"),
    Step("topic delete clicks --yes"),
    Step("topic delete clicks --yes"),
    Step("topic list"),
    Step("worker --once"),
    Step("topic describe users"),
    Step("version"),
]
ABOUT_THE_PROCESS = {"scene", "serve", "status"}
"""Commands that are about who runs, so that they must differ."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cli, Cli]]:
    """The command line on a folder of its own, and on one that a server holds."""
    folder = tmp_path_factory.mktemp("both")
    (folder / "direct").mkdir()
    (folder / "direct" / "lastword.yaml").write_text(SETTINGS + QUIET)
    with serving(folder / "served", settings=SETTINGS + QUIET):
        yield Cli(folder / "direct"), Cli(folder / "served")


QUIET = "seal.interval.ms: 3600000\nworker.initial.delay.ms: 3600000\nworker.nice: 0\n"
"""The server's own worker must not be faster than the test; nor is the test's own process made nicer."""


@pytest.fixture(scope="module")
def outcomes(both: tuple[Cli, Cli]) -> dict[int, dict[str, list[Result]]]:
    """What each step gave, on both, as text and as JSON. Steps that change something are run once, as text."""
    found: dict[int, dict[str, list[Result]]] = {}
    for index, step in enumerate(STEPS):
        as_json = not step.line.startswith(CHANGING)
        found[index] = {
            kind: [result(cli, step, *more) for cli in both]
            for kind, more in (("text", ()), ("json", ("--json",)))
            if kind == "text" or as_json
        }
    return found


CHANGING = (
    "topic create",
    "topic alter",
    "topic delete",
    "topic seal",
    "topic compact users",
    "produce",
    "erase",
)


def result(cli: Cli, step: Step, *more: str) -> Result:
    line = step.line.format(data=cli.data)
    return cli(*line.split(), *more, code=None, stdin=step.stdin)


@pytest.mark.parametrize("index", range(len(STEPS)), ids=lambda index: f"{index} {STEPS[index].line[:40]}")
def test_the_same_both_ways(outcomes: dict[int, dict[str, list[Result]]], index: int) -> None:
    for direct, served in outcomes[index].values():
        assert served.code == direct.code, (direct, served)
        assert masked(served.err) == masked(direct.err)
        assert masked(served.out) == masked(direct.out)
        assert "Traceback" not in served.err


def test_steps_of_all_kinds_did_what_they_should(outcomes: dict[int, dict[str, list[Result]]]) -> None:
    codes = [found["text"][0].code for found in outcomes.values()]
    assert {0, 2} <= set(codes)
    assert codes.count(0) > 30


def test_every_command_is_compared() -> None:
    own_tests = {name for name in COMMANDS if name.startswith("connect ")}
    assert {step.covers for step in STEPS} == set(COMMANDS) - ABOUT_THE_PROCESS - own_tests


MASKS = [
    (r"(\"[a-z_]*(bytes|_ms|duration_s|_ratio)\": )[\d.e-]+", r"\1NUMBER"),
    (r"\"job\": \"[0-9a-f]{16}\"", "JOB"),
    (r"(\"[a-z_]*bytes[a-z_]*\": )\"\d+( -> \d+)?\"", r"\1NUMBER"),
    (r"/\S*/(direct|served)\b", "DATA"),
    (r"process \d+ on \S+ \(`[^`]*`\)", "PROCESS"),
    (r"none is running|\"worker\": (null|\"PROCESS\")", "PROCESS"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}", "UUID"),
    (r"[0-9a-f]{32}", "UUID"),
    (r"\b\d{16,20}\b", "SNAPSHOT"),
    (r"\d{8}T\d{9}-[0-9a-f]{8}", "BACKUP"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"\d{4}-\d\d-\d\d [\d:]+ UTC", "TIME"),
    (r"\b\d+(\.\d+)? (B|kB|MB)\b", "SIZE"),
    (r"\b\d+\.\d s\b", "DURATION"),
    (r"\b\d+[smhd]( \d+[smhd])?( ago)?(?=\s)", "AGE"),
    (r"\d{13}", "MS"),
    (r"[0-9a-zA-Z-]+\.parquet", "FILE"),
    (r" +", " "),
]


def masked(text: str) -> str:
    """Without what differs between two runs: names of places, ids, times, and sizes that follow from them."""
    for pattern, name in MASKS:
        text = re.sub(pattern, name, text)
    return text


def test_settings_given_to_a_command_beside_a_server_are_not_silently_ignored(
    both: tuple[Cli, Cli], tmp_path: Path
) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("retention.ms: 1\n")
    found = both[1]("topic", "list", "--config", str(file))
    assert "its settings apply" in found.err


def test_damage_is_shown_and_left_behind_through_the_server(tmp_path: Path) -> None:
    with serving(tmp_path / "data", settings=SETTINGS + QUIET) as server:
        cli = Cli(server.data)
        cli("topic", "create", "users")
        for value in range(3):
            cli("produce", "users", stdin=f"k:{value}\n".encode())
        damage_second_batch(server)
        (shown,) = cli.json("wal", "repair", "users", code=1)["damage"]
        assert (shown["first_offset"], shown["end_offset"]) == (1, 2)
        (left,) = cli.json("wal", "repair", "users", "--skip", "--yes")["damage"]
        assert left["first_offset"] == 1
        assert cli.values("users") == ["0", "2"]
        cli("produce", "users", stdin=b"k:3\n")
        assert cli.values("users") == ["0", "2", "3"]


def damage_second_batch(server: Server) -> None:
    (file,) = server.data.glob("wal/default/users/*/0/wal.*.log")
    content = bytearray(file.read_bytes())
    second = len(content) // 3
    content[second + 40] ^= 0xFF
    with file.open("r+b") as opened:
        opened.write(content)


def test_a_server_that_becomes_ready_while_status_looks(both: tuple[Cli, Cli]) -> None:
    class Late(Session):
        """Finds no server when it looks for the first time."""

        looks = 0

        @property
        def backend(self) -> Backend:
            Late.looks += 1
            return Direct(self) if Late.looks == 1 else super().backend

    assert read_status(Late(data=both[1].data))["ready"] is True


def test_a_command_without_json_and_one_with_it_say_the_same(both: tuple[Cli, Cli]) -> None:
    found: Any = both[1].json("status")
    assert found["ready"] is True
    assert found["server"]["pid"] > 0
    # A folder without a topic is no log yet.
    both[0]("topic", "create", "some")
    direct: Any = both[0].json("status", code=1)
    assert direct["server"] is None
    assert set(direct) == set(found)
