"""What a seed chooses: the settings, the surroundings of the server, its clients, and what goes wrong and when.

Seeds 0 to 9 have their surroundings from `FORCED`, so that ten seeds have every dimension at least once. Everything
else, and all of later seeds, is drawn at random. The same seed gives the same plan. What real processes make of it
depends on their timing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

INLINE: Final = "lastword.compaction.inline:InlineCompactionServiceFactory"
KEYS: Final = tuple(f"k{number}" for number in range(24))
HOUR_MS: Final = 3_600_000

Engine = Literal["inline", "spark"]
Catalog = Literal["sqlite", "postgres"]
Warehouse = Literal["local", "s3"]
Disk = Literal["large", "small"]
Role = Literal["broker", "worker", "supervisor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What surrounds the server."""

    engine: Engine = "inline"
    catalog: Catalog = "sqlite"
    warehouse: Warehouse = "local"
    disk: Disk = "large"
    is_default: bool = False
    """Whether topics and broker have the default settings, but for what the rest of the place needs."""
    steps_clock: bool = False
    fails_store: bool = False
    """Whether requests to S3 fail, are slow, and get no answer."""
    kills: tuple[Role, ...] = ("broker", "worker")
    wal_sync: str = "group"
    defect: str | None = None
    """A defect that is put into the server: one of lastword.testing.simulation.mutations."""


FORCED: Final[tuple[Place, ...]] = (
    Place(),
    Place(warehouse="s3", fails_store=True),
    Place(engine="spark", is_default=True, kills=("broker",)),
    Place(catalog="postgres", warehouse="s3", kills=("broker", "worker", "supervisor")),
    Place(disk="small"),
    Place(steps_clock=True),
    Place(engine="spark", catalog="postgres", warehouse="s3", fails_store=True, kills=("broker", "worker")),
    Place(disk="small", warehouse="s3", fails_store=True, kills=("worker",)),
    Place(is_default=True, kills=("broker", "worker", "supervisor")),
    Place(warehouse="s3", fails_store=True, steps_clock=True, kills=("broker", "worker", "supervisor")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    name: str
    partitions: int
    settings: Mapping[str, str]
    is_churned: bool = False
    """Whether it is deleted and created again, again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlan:
    """A client with its own configuration."""

    library: Literal["librdkafka", "java"] = "librdkafka"
    name: str
    config: Mapping[str, Any]
    is_reliable: bool = True
    """Of a producer: whether it sends again until a record is acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfortune:
    """Something that begins to go wrong `after_s` seconds after the one before it, and goes on for `for_s` seconds."""

    after_s: float
    what: Literal[
        "kill", "pause", "restart", "fill disk", "fail store", "slow store", "step clock", "kill catalog"
    ]
    role: Role | None = None
    for_s: float = 0.0
    number: float = 0.0
    """How many kills come in a row, how far the clock is moved in seconds, how likely a request fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run over real processes."""

    seed: int
    seconds: float
    """How long things may go wrong."""
    place: Place
    broker: Mapping[str, Any]
    topics: tuple[TopicPlan, ...]
    producers: tuple[ClientPlan, ...]
    consumers: tuple[ClientPlan, ...]
    misfortunes: tuple[Misfortune, ...]
    restores: bool
    """Whether the last backup is restored at the end, and read."""

    @property
    def dimensions(self) -> frozenset[str]:
        """Return the names of what this plan has, so that several plans can be counted together."""
        place = self.place
        found = {place.engine, place.catalog, place.warehouse, f"{place.disk} disk"}
        found.add("default settings" if place.is_default else "random settings")
        found |= {each.what if each.role is None else f"{each.what} {each.role}" for each in self.misfortunes}
        found |= {f"strategy {each.settings.get('compaction.strategy', 'offset')}" for each in self.topics}
        found |= {f"policy {each.settings.get('cleanup.policy', 'delete')}" for each in self.topics}
        found |= {"churn"} if any(each.is_churned for each in self.topics) else set()
        found |= {"plain producer"} if not all(each.is_reliable for each in self.producers) else set()
        return frozenset(found | ({"restore"} if self.restores else set()))


DIMENSIONS: Final = frozenset(
    {
        *("inline", "spark", "sqlite", "postgres", "local", "s3", "large disk", "small disk"),
        *("default settings", "random settings", "churn", "plain producer", "restore"),
        *("kill broker", "kill worker", "kill supervisor", "pause broker", "pause worker", "restart"),
        *("fill disk", "fail store", "slow store", "step clock", "kill catalog"),
        *("strategy offset", "strategy first", "strategy timestamp", "strategy header"),
        *("policy compact", "policy compact,delete", "policy delete"),
    }
)
"""What the seeds 0 to 9 have together."""


def plan_of(seed: int, seconds: float, place: Place | None = None, *, with_java: bool = False) -> Plan:
    """Return the plan of a seed. With Java, the first producer and the first consumer are Java's."""
    chance = random.Random(seed)
    drawn = _place(chance)
    if place is None:
        place = FORCED[seed] if seed < len(FORCED) else drawn
    topics = _topics(chance, place, seed)
    producers, consumers = _producers(chance), _consumers(chance)
    return Plan(
        seed=seed,
        seconds=seconds,
        place=place,
        broker=_broker_settings(chance, place),
        topics=topics,
        producers=((_JAVA_PRODUCER,) if with_java else ()) + producers[with_java:],
        consumers=((_JAVA_CONSUMER,) if with_java else ()) + consumers[with_java:],
        misfortunes=tuple(_misfortunes(chance, place, seconds)),
        # A restored backup has the paths of its warehouse inside the data folder.
        restores=place.warehouse == "local" and place.catalog == "sqlite" and seed % 2 == 0,
    )


def _place(chance: random.Random) -> Place:
    warehouse: Warehouse = chance.choice(["local", "s3"])
    return Place(
        engine="spark" if chance.random() < 0.2 else "inline",
        catalog=chance.choice(["sqlite", "sqlite", "postgres"]),
        warehouse=warehouse,
        disk=chance.choice(["large", "large", "small"]),
        is_default=chance.random() < 0.2,
        steps_clock=chance.random() < 0.25,
        fails_store=warehouse == "s3" and chance.random() < 0.7,
        kills=chance.choice(
            [("broker",), ("worker",), ("broker", "worker"), ("broker", "worker", "supervisor")]
        ),
        wal_sync="interval:20" if chance.random() < 0.15 else "group",
    )


# --------------------------------------------------------------------------------------------------- settings


def _topics(chance: random.Random, place: Place, seed: int) -> tuple[TopicPlan, ...]:
    lasting = {"cleanup.policy": "compact"} if place.is_default else _topic_settings(chance, seed)
    churned = {"cleanup.policy": "compact"} if place.is_default else _topic_settings(chance, seed + 1)
    passing = {} if place.is_default else _retention(chance, "delete")
    return (
        TopicPlan(name="lasting", partitions=chance.choice([1, 2, 3]), settings=lasting),
        TopicPlan(name="churned", partitions=chance.choice([1, 2]), settings=churned, is_churned=True),
        TopicPlan(name="passing", partitions=1, settings=passing),
    )


def _topic_settings(chance: random.Random, number: int) -> dict[str, str]:
    policy = chance.choice(["compact", "compact", "compact,delete"])
    settings = {
        "cleanup.policy": policy,
        "min.cleanable.dirty.ratio": chance.choice(["0", "0.01", "0.5"]),
        "delete.retention.ms": str(chance.choice([0, 2_000, 20_000, HOUR_MS])),
        "tiering.lag.ms": str(chance.choice([300, 2_000, 300_000])),
        "local.retention.ms": str(chance.choice([0, 5_000, HOUR_MS])),
        "segment.bytes": str(chance.choice([2_000, 30_000, 1 << 30])),
        "tombstone.clock": chance.choice(["compaction", "compaction", "record"]),
    }
    settings |= _strategy(chance, ("offset", "first", "offset", "timestamp", "header")[number % 5])
    lag = chance.random()
    if lag < 0.2:
        settings["min.compaction.lag.ms"] = str(chance.choice([1_000, 8_000]))
    elif lag < 0.4:
        settings["max.compaction.lag.ms"] = str(chance.choice([2_000, 15_000]))
    if chance.random() < 0.3:
        settings["min.rewrite.ratio"] = chance.choice(["0.3", "0.9"])
    if chance.random() < 0.2:
        settings["dirty.ratio.basis"] = "records"
    if chance.random() < 0.2:
        settings["message.timestamp.type"] = "LogAppendTime"
    if chance.random() < 0.2:
        settings["segment.compression.type"] = "lz4"
    return settings | (_retention(chance, policy) if "delete" in policy else {})


def _strategy(chance: random.Random, name: str) -> dict[str, str]:
    settings = {"compaction.strategy": name}
    if name == "header":
        settings |= {
            "compaction.strategy.header": "version",
            "compaction.strategy.header.format": chance.choice(["long", "text"]),
            "compaction.strategy.header.missing": chance.choice(["reject", "lowest"]),
        }
    return settings


def _retention(chance: random.Random, policy: str) -> dict[str, str]:
    settings = {"cleanup.policy": policy, "retention.ms": str(chance.choice([10_000, 60_000, HOUR_MS]))}
    if policy == "delete":
        settings["segment.ms"] = str(chance.choice([2_000, 10_000]))
        settings["tiering.lag.ms"] = str(chance.choice([300, 5_000]))
    if chance.random() < 0.2:
        settings["retention.bytes"] = "200000"
    # The local retention follows the total one where that is shorter.
    settings["local.retention.ms"] = str(chance.choice([0, -2]))
    return settings


def _broker_settings(chance: random.Random, place: Place) -> dict[str, Any]:
    settings: dict[str, Any] = {"auto.create.topics.enable": "false", "wal.sync": place.wal_sync}
    if place.engine == "inline":
        settings["compaction.service.factory"] = INLINE
    if place.is_default:
        return settings
    return settings | {
        "group.initial.rebalance.delay.ms": chance.choice([0, 500]),
        "worker.initial.delay.ms": chance.choice([200, 3_000]),
        "worker.interval.ms": chance.choice([500, 3_000]),
        "worker.nice": 0,
        "seal.interval.ms": chance.choice([200, 2_000]),
        "deleter.interval.ms": chance.choice([300, 3_000]),
        "retention.interval.ms": chance.choice([500, 5_000]),
        "expire.interval.ms": chance.choice([500, 5_000]),
        "collect.interval.ms": chance.choice([1_000, 10_000]),
        "snapshot.retention.ms": chance.choice([0, 5_000, HOUR_MS]),
        "collect.grace.ms": chance.choice([10_000, HOUR_MS]),
        "lease.ttl.ms": chance.choice([5_000, 60_000]),
        "fetch.cache.bytes": chance.choice([1 << 20, 1 << 28]),
    }


# ---------------------------------------------------------------------------------------------------- clients

_JAVA_PRODUCER: Final = ClientPlan(
    library="java",
    name="Java producer",
    config={
        "enable.idempotence": True,
        "delivery.timeout.ms": 300_000,
        "linger.ms": 5,
        "compression.type": "zstd",
    },
)
_JAVA_CONSUMER: Final = ClientPlan(
    library="java",
    name="Java consumer",
    config={
        "auto.offset.reset": "none",
        "enable.auto.commit": False,
        "max.partition.fetch.bytes": 20_000,
        "default.api.timeout.ms": 5_000,
        "request.timeout.ms": 4_000,
    },
)


def _producers(chance: random.Random) -> tuple[ClientPlan, ...]:
    reliable = {
        "enable.idempotence": True,
        "message.timeout.ms": 300_000,
        "retry.backoff.ms": 50,
    }
    plain = {
        "enable.idempotence": False,
        "retries": 0,
        "max.in.flight": 1,
        "message.timeout.ms": chance.choice([1_500, 5_000]),
        "socket.timeout.ms": 1_400,
    }
    return (
        ClientPlan(name="producer 1", config={**reliable, **_sending(chance)}),
        ClientPlan(name="producer 2", config={**reliable, **_sending(chance)}),
        ClientPlan(name="plain producer", config={**_sending(chance), **plain}, is_reliable=False),
    )


def _sending(chance: random.Random) -> dict[str, Any]:
    return {
        "compression.type": chance.choice(["none", "gzip", "lz4", "zstd", "snappy"]),
        "linger.ms": chance.choice([0, 2, 20]),
        "batch.num.messages": chance.choice([1, 10, 10_000]),
        "socket.timeout.ms": 10_000,
    }


def _consumers(chance: random.Random) -> tuple[ClientPlan, ...]:
    return tuple(
        ClientPlan(
            name=f"consumer {number}",
            config={
                "max.partition.fetch.bytes": chance.choice([1, 2_000, 1 << 20]),
                "fetch.wait.max.ms": chance.choice([10, 500]),
                "fetch.min.bytes": chance.choice([1, 1_000]),
            },
        )
        for number in (1, 2)
    )


# ------------------------------------------------------------------------------------------------ misfortunes


def _misfortunes(chance: random.Random, place: Place, seconds: float) -> list[Misfortune]:
    kinds = [("kill", role) for role in place.kills for _ in range(1 if role == "supervisor" else 3)]
    kinds += [("pause", "broker"), ("pause", "worker"), ("restart", None)]
    if place.disk == "small":
        kinds += [("fill disk", None)] * 4
    if place.fails_store:
        kinds += [("fail store", None)] * 4 + [("slow store", None)] * 2
    if place.steps_clock:
        kinds += [("step clock", None)] * 5
    if place.catalog == "postgres":
        kinds.append(("kill catalog", None))
    # Each kind once in any order, if there is time, and then at random.
    first = list(dict.fromkeys(kinds))
    chance.shuffle(first)
    found: list[Misfortune] = []
    at_s = 0.0
    while at_s < seconds:
        what, role = first.pop() if first else chance.choice(kinds)
        made = _misfortune(chance, what, role)
        found.append(made)
        at_s += made.after_s
    return found


def _misfortune(chance: random.Random, what: Any, role: Any) -> Misfortune:
    after_s = round(chance.uniform(0.5, 6.0), 3)
    for_s = number = 0.0
    match what:
        case "kill":
            number = chance.choice([1, 1, 1, 2, 3])
        case "pause":
            for_s = round(chance.uniform(0.5, 7.0), 3)
        case "fill disk":
            # So many bytes are left.
            for_s, number = round(chance.uniform(1.0, 6.0), 3), chance.choice([0, 0, 4_096, 40_000])
        case "fail store":
            for_s, number = round(chance.uniform(1.0, 6.0), 3), chance.choice([0.1, 0.5, 1.0])
        case "slow store":
            for_s, number = round(chance.uniform(2.0, 6.0), 3), chance.choice([0.3, 2.0])
        case "step clock":
            number = chance.choice([-1_800.0, -5.0, 5.0, 600.0, 26 * 3_600.0])
    return Misfortune(after_s=after_s, what=what, role=role, for_s=for_s, number=number)
