"""The plan of a simulation: settings, scripts of clients, and faults, all derived from a seed.

A plan is data. It can be printed, stored, and shrunk to the part that a failure needs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any, Final

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS

TOPIC: Final = "users"
SHARED: Final = "beside the data folder"

STEPS: Final = (
    "wal.written",
    "wal.synced",
    "wal.roll.synced",
    "wal.roll.created",
    "wal.roll.named",
    "wal.recover.copied",
    "seal.written",
    "seal.round.written",
    "seal.committed",
    "segment.marks.written",
    "compact.segment.marked",
    "compact.segment.written",
    "compact.before_commit",
    "compact.committed",
    "commit.before",
    "commit.done",
    "retention.committed",
    "expire.committed",
    "collect.noted",
    "collect.file.removed",
    "deleter.noted",
    "deleter.removed",
    "erase.noted",
    "erase.rewritten",
    "erase.expired",
    "erase.wal_removed",
    "topic.creation.noted",
    "topic.created",
    "topic.deletion.noted",
    "topic.deletion.marked",
    "topic.deletion.wal_removed",
    "topic.deletion.dropped",
    "create.before",
    "create.done",
    "drop.looked",
    "drop.entry.removed",
    "topic.deletion.files_removed",
    "erase.segment.written",
    "erase.segment.committed",
    "erase.collected",
    "backup.pinned",
    "backup.wals.copied",
    "backup.copied",
    "backup.made",
    "own.noted",
    "takeover.committed",
)
"""Steps at which processes are killed or held."""

_WRITING: Final = ("commit.before", "commit.done")
_OF_AN_ACT: Final[Mapping[str, tuple[str, ...]]] = {
    "compact": ("compact.", "seal.", *_WRITING),
    "compact_and_read": ("compact.", *_WRITING),
    "compact_later": ("compact.", "seal.", "expire.", "collect.", *_WRITING),
    "seal": ("wal.roll.", "seal.", *_WRITING),
    "tidy": ("retention.", "expire.", "collect.", "deleter."),
    "erase": ("erase.",),
    "delete_records": ("retention.", *_WRITING),
    "alter": _WRITING,
    "recreate": ("topic.", "create.", "drop.", *_WRITING),
    "delete_topic": ("topic.deletion.", "drop.", *_WRITING),
    "backup": ("backup.",),
    "take_over": ("own.", "takeover.", *_WRITING),
}
"""The prefixes of the steps that each act of the operator leads to."""
_BY_THE_BROKER: Final = ("delete_records", "alter", "recreate", "delete_topic", "take_over")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An act of a script, `after_s` seconds after the previous one."""

    after_s: float
    do: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A client, an operator or the faults, with acts in order."""

    name: str
    acts: tuple[Act, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A simulation."""

    seed: int
    schedule: int
    """The seed of the scheduler's decisions."""
    partitions: int
    keys: int
    """With many keys, most records are the newest of their key, so losses show. With few keys, most are superseded."""
    topic: Mapping[str, str]
    broker: Mapping[str, Any]
    loses_power: bool
    is_late: bool
    """Whether a record may have an older timestamp than the one before it."""
    switching: float
    """The probability that other fibers may run at a point."""
    scripts: tuple[Script, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def with_scripts(self, scripts: tuple[Script, ...]) -> Plan:
        return replace(self, scripts=scripts)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        scripts = tuple(
            Script(name=each["name"], acts=tuple(Act(**act) for act in each["acts"]))
            for each in data["scripts"]
        )
        return cls(**{**data, "scripts": scripts})


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed."""
    chance = random.Random(seed)
    is_default = chance.random() < 0.3
    loses_power = chance.random() < 0.25
    return Plan(
        seed=seed,
        schedule=seed,
        partitions=chance.choice([1, 1, 2]),
        keys=chance.choice([4, 8, 60]),
        topic=_topic_settings(chance, is_default),
        broker=_broker_settings(chance, is_default),
        loses_power=loses_power,
        is_late=chance.random() < 0.3,
        switching=chance.choice([0.02, 0.1, 0.3]),
        scripts=tuple(_scripts(chance, loses_power=loses_power)),
    )


def _topic_settings(chance: random.Random, is_default: bool) -> dict[str, str]:
    if is_default:
        return {"cleanup.policy": "compact"}
    settings = {
        "cleanup.policy": chance.choice(["compact", "compact", "compact,delete"]),
        "min.cleanable.dirty.ratio": chance.choice(["0", "0.01", "0.5"]),
        "delete.retention.ms": str(chance.choice([0, 10 * SECOND_MS, 2 * MINUTE_MS, HOUR_MS])),
        "tiering.lag.ms": str(chance.choice([SECOND_MS, 20 * SECOND_MS, 5 * MINUTE_MS])),
        "local.retention.ms": str(chance.choice([0, 30 * SECOND_MS, HOUR_MS])),
        "compaction.strategy": chance.choice(["offset", "offset", "offset", "first", "timestamp"]),
        "compaction.at.seal": chance.choice(["true", "true", "false"]),
        "min.rewrite.ratio": chance.choice(["0", "0.3", "0.9", "1"]),
    }
    if chance.random() < 0.2:
        settings["garbage.max.ms"] = str(chance.choice([0, 30 * SECOND_MS]))
    if chance.random() < 0.2:
        settings["min.compaction.lag.ms"] = str(chance.choice([10 * SECOND_MS, MINUTE_MS]))
    if chance.random() < 0.2:
        settings["max.compaction.lag.ms"] = str(chance.choice([MINUTE_MS, 2 * MINUTE_MS]))
    if chance.random() < 0.4:
        settings["segment.bytes"] = str(chance.choice([300, 300, 2_000]))
    return settings


def _broker_settings(chance: random.Random, is_default: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory"
    }
    if chance.random() < 0.25:
        settings["warehouse"] = "s3://bucket/warehouse"
        if chance.random() < 0.5:
            # Beside the data folder, so that another folder can use it too.
            settings["catalog"] = SHARED
    if is_default:
        return settings
    return settings | {
        "worker.initial.delay.ms": chance.choice([0, 10 * SECOND_MS]),
        "worker.interval.ms": chance.choice([5, 30, 300]) * SECOND_MS,
        "seal.interval.ms": chance.choice([2, 10, 40]) * SECOND_MS,
        "deleter.interval.ms": chance.choice([5, 60]) * SECOND_MS,
        "retention.interval.ms": chance.choice([30, 300]) * SECOND_MS,
        "expire.interval.ms": chance.choice([10, 10, 300]) * SECOND_MS,
        "collect.interval.ms": chance.choice([10, 10, 300]) * SECOND_MS,
        "snapshot.retention.ms": chance.choice([0, 30 * SECOND_MS, MINUTE_MS, HOUR_MS]),
        "collect.grace.ms": chance.choice([5 * SECOND_MS, MINUTE_MS, HOUR_MS]),
    }


def _scripts(chance: random.Random, *, loses_power: bool) -> list[Script]:
    scripts = [_producer(chance, number) for number in range(chance.choice([1, 2]))]
    scripts += [_consumer(chance, number) for number in range(chance.choice([1, 2]))]
    scripts.append(_reader(chance))
    scripts.append(_operator(chance, "operator"))
    if chance.random() < 0.3:
        scripts.append(_operator(chance, "operator 2"))
    if chance.random() < 0.4:
        scripts.append(_group(chance))
    if loses_power or chance.random() < 0.6:
        scripts.append(_faults(chance, loses_power=loses_power))
    if chance.random() < 0.5:
        scripts.append(_meeting(chance))
    return scripts


def _pause_s(chance: random.Random) -> float:
    return round(chance.choice([0.0, 0.01, 1.0, 5.0, 30.0]) * chance.random(), 3)


def _acts(
    chance: random.Random, count: int, choices: list[tuple[float, str]], args: Mapping[str, Any]
) -> list[Act]:
    names = [name for _, name in choices]
    weights = [weight for weight, _ in choices]
    return [
        Act(
            after_s=_pause_s(chance),
            do=chance.choices(names, weights)[0],
            args={**args, "n": chance.getrandbits(30)},
        )
        for _ in range(count)
    ]


def _producer(chance: random.Random, number: int) -> Script:
    acts = _acts(chance, chance.randint(5, 25), [(8, "produce"), (2, "delete_keys"), (1, "produce_many")], {})
    return Script(name=f"producer {number}", acts=tuple(acts))


def _consumer(chance: random.Random, number: int) -> Script:
    acts = _acts(chance, chance.randint(2, 6), [(4, "read_all"), (1, "read_slowly")], {})
    return Script(name=f"consumer {number}", acts=tuple(acts))


def _reader(chance: random.Random) -> Script:
    acts = _acts(
        chance,
        chance.randint(2, 6),
        [(3, "state"), (3, "as_of_offset"), (3, "as_of_time"), (2, "look"), (2, "replay")],
        {},
    )
    return Script(name="reader", acts=tuple(acts))


def _group(chance: random.Random) -> Script:
    acts = _acts(chance, chance.randint(2, 8), [(3, "commit"), (2, "committed")], {})
    return Script(name="group", acts=tuple(_with_accident(chance, act) for act in acts))


def _operator(chance: random.Random, name: str) -> Script:
    choices = [
        (4, "compact"),
        (2, "compact_and_read"),
        (1.5, "compact_later"),
        (3, "seal"),
        (2, "tidy"),
        (2, "erase"),
        (1, "delete_records"),
        (1, "alter"),
        (1.5, "recreate"),
        (1, "delete_topic"),
        (1, "backup"),
        (0.7, "restore"),
        (0.7, "take_over"),
    ]
    acts = _acts(chance, chance.randint(2, 10), choices, {})
    return Script(name=name, acts=tuple(_with_accident(chance, act) for act in acts))


def _with_accident(chance: random.Random, act: Act) -> Act:
    """Add a fault at the moment of an act, so that it hits the requested work."""
    if chance.random() < 0.6:
        return act
    beginnings = _OF_AN_ACT.get(act.do, ())
    steps = [step for step in STEPS if step.startswith(beginnings)]
    kind = chance.choice(["kill_at", "kill_at", "hold_at", "fail_syncs", "fail_store"] if steps else ["kill"])
    accident: dict[str, Any] = {"role": "broker", "n": chance.getrandbits(30)}
    if kind in ("kill_at", "hold_at"):
        step = accident["step"] = chance.choice(steps)
        is_brokers = act.do in _BY_THE_BROKER or step.startswith("wal.")
        accident["role"] = "broker" if is_brokers else "worker"
    if kind == "fail_syncs":
        accident["after"] = chance.randrange(8)
    if kind == "hold_at":
        accident["until"] = chance.choice(STEPS)
    return replace(act, args={**act.args, "accident": {"do": kind, "args": accident}})


def _faults(chance: random.Random, *, loses_power: bool) -> Script:
    acts = []
    kinds = {
        "kill": 3,
        "kill_at": 4,
        "fail_syncs": 1,
        "fail_store": 1,
        "slow_store": 1,
        "jump": 1,
        "cut_power": 1,
    }
    for _ in range(chance.randint(1, 6)):
        kind = chance.choices(list(kinds), list(kinds.values()))[0]
        args: dict[str, Any] = {
            "role": chance.choice(["broker", "worker", "worker"]),
            "n": chance.getrandbits(30),
        }
        if kind == "kill_at":
            args["step"] = chance.choice(STEPS)
        acts.append(Act(after_s=round(20 * chance.random() ** 2, 3), do=kind, args=args))
    if loses_power:
        cut = Act(after_s=round(20 * chance.random() ** 2, 3), do="cut_power", args={"n": 0})
        acts.insert(chance.randint(0, len(acts)), cut)
    return Script(name="faults", acts=tuple(acts))


def _meeting(chance: random.Random) -> Script:
    """Hold a process at a step until another one reaches a second step, so that rare pairs of steps meet."""
    acts = [
        Act(
            after_s=_pause_s(chance),
            do="hold_at",
            args={"step": first, "until": second, "n": chance.getrandbits(30)},
        )
        for first, second in (chance.sample(STEPS, 2) for _ in range(chance.randint(1, 3)))
    ]
    return Script(name="meeting", acts=tuple(acts))


def steered(plan: Plan, met: Mapping[tuple[str, str], int]) -> Plan:
    """Return a plan that brings together steps that have met least often. Operators lead to both, and one process is held."""
    chance = random.Random(plan.seed)
    pairs = list(combinations(STEPS, 2))
    chance.shuffle(pairs)
    pairs.sort(key=lambda pair: met.get(pair, 0) + met.get((pair[1], pair[0]), 0))
    holds: list[Act] = []
    operators: tuple[list[Act], list[Act]] = ([], [])
    for pair in pairs[:4]:
        first, second = chance.sample(pair, 2)
        holds.append(
            Act(after_s=_pause_s(chance), do="hold_at", args={"step": first, "until": second, "n": 0})
        )
        for step, acts in zip((first, second), operators, strict=True):
            leading = [act for act, beginnings in _OF_AN_ACT.items() if step.startswith(beginnings)]
            if leading:
                args = {"n": chance.getrandbits(30)}
                acts.append(Act(after_s=_pause_s(chance), do=chance.choice(leading), args=args))
    scripts = [each for each in plan.scripts if each.name != "meeting"]
    scripts.append(Script(name="meeting", acts=tuple(holds)))
    scripts += [
        Script(name=f"operator of a meeting {number}", acts=tuple(acts))
        for number, acts in enumerate(operators)
        if acts
    ]
    return plan.with_scripts(tuple(scripts))


def warm_up_plan() -> Plan:
    """Return a plan that runs every part once, so that forks have it loaded."""
    ways = (
        "produce",
        "delete_keys",
        "produce_many",
        "seal",
        "compact",
        "read_all",
        "commit",
        "committed",
        "tidy",
        "erase",
        "delete_records",
        "alter",
        "compact_and_read",
        "compact_later",
        "recreate",
    )
    return Plan(
        seed=0,
        schedule=0,
        partitions=1,
        keys=8,
        topic={"cleanup.policy": "compact"},
        broker=_broker_settings(random.Random(0), True),
        loses_power=False,
        is_late=False,
        switching=0.0,
        scripts=(
            Script(name="operator", acts=tuple(Act(after_s=1, do=way, args={"n": 0}) for way in ways)),
            Script(
                name="reader",
                acts=tuple(
                    Act(after_s=3, do=way, args={"n": 0})
                    for way in ("look", "state", "replay", "as_of_offset", "as_of_time")
                ),
            ),
        ),
    )
