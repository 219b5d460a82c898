"""The tables of all settings, the source of checks, defaults and the reference page in the docs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from lastword.config.values import (
    INT_MAX,
    LONG_MAX,
    Address,
    Choice,
    CleanupPolicy,
    Kind,
    Name,
    Ratio,
    Switch,
    WalSyncKind,
    WholeNumber,
)
from lastword.errors import InvalidConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. Without a default it is not set, and `unset` tells the user what applies then."""

    key: str
    kind: Kind
    default: str | None
    meaning: str
    unset: str = "not set"

    @property
    def attribute(self) -> str:
        return self.key.replace(".", "_")

    def canonical(self, raw: object, *, where: str) -> str:
        """Return the canonical text of a value. Errors name the place, the key, the value and the allowed values."""
        try:
            return self.kind.text(self.kind.parse(raw))
        except ValueError:
            raise InvalidConfigError(
                f"{where}: {self.key} {_shown(raw)}; allowed: {self.kind.allowed}"
            ) from None


_DURATION_MS = WholeNumber()
_INTERVAL_MS = WholeNumber(low=1)
_LIMIT = WholeNumber(unlimited=(-1,))
_BYTES = WholeNumber(high=INT_MAX)

TOPIC_SETTINGS: tuple[Setting, ...] = (
    Setting(
        key="cleanup.policy",
        kind=CleanupPolicy(),
        default="delete",
        meaning="`delete` drops records older than the retention, `compact` keeps the last record of each key, "
        "`compact,delete` (in either order) does both",
    ),
    Setting(
        key="min.cleanable.dirty.ratio",
        kind=Ratio(),
        default="0.5",
        meaning="a partition is compacted when its share of uncompacted data reaches this",
    ),
    Setting(
        key="dirty.ratio.basis",
        kind=Choice(("bytes", "records")),
        default="bytes",
        meaning="how that share is measured. `bytes`: dirty bytes out of all bytes; "
        "`records`: estimated superseded records out of all records",
    ),
    Setting(
        key="min.compaction.lag.ms",
        kind=_DURATION_MS,
        default="0",
        meaning="a segment whose newest record is younger is not compacted, nor is any after it",
    ),
    Setting(
        key="max.compaction.lag.ms",
        # Kafka's clients send and expect the largest long for 'no limit', so that value is stored.
        kind=WholeNumber(low=1, unlimited=(LONG_MAX, -1), takes_none=True),
        default=str(LONG_MAX),
        meaning="a dirty segment whose oldest record is older makes the partition due, whatever its ratio",
    ),
    Setting(
        key="delete.retention.ms",
        kind=_DURATION_MS,
        default="86400000",
        meaning="how long a tombstone stays readable before compaction may remove it",
    ),
    Setting(
        key="tombstone.clock",
        kind=Choice(("compaction", "record")),
        default="compaction",
        meaning="the start of `delete.retention.ms`. `compaction`: the first compaction that passes the "
        "tombstone, as in Kafka; `record`: the tombstone's timestamp",
    ),
    Setting(
        key="compaction.strategy",
        kind=Choice(("offset", "first", "timestamp", "header")),
        default="offset",
        meaning="which record of a key stays: the newest, the oldest, the one with the highest timestamp, "
        "or the one with the highest version in a header",
    ),
    Setting(
        key="compaction.strategy.header",
        kind=Name("the name of a header"),
        default=None,
        meaning="the header that has the version; required by `compaction.strategy=header`. "
        "If a record has several of that name, the last one counts",
    ),
    Setting(
        key="compaction.strategy.header.format",
        kind=Choice(("long", "text")),
        default=None,
        meaning="how the version is written: `long` is 8 bytes, big-endian, signed; `text` is a decimal number. "
        "Required by `compaction.strategy=header`",
    ),
    Setting(
        key="compaction.strategy.header.missing",
        kind=Choice(("reject", "lowest")),
        default="reject",
        meaning="a record without a readable version is refused when it is produced (`reject`), "
        "or loses to every record that has one (`lowest`)",
    ),
    Setting(
        key="null.key",
        kind=Choice(("keep", "reject")),
        default="keep",
        meaning="on compacted topics, records without a key are kept by compaction, or refused when produced "
        "(`reject`, as in Kafka)",
    ),
    Setting(
        key="min.rewrite.ratio",
        kind=Ratio(),
        default="0",
        meaning="a compacted segment with a smaller share of superseded records is left for a later run. "
        "`0`: every superseded record is removed; higher: less rewriting, somewhat more space",
    ),
    Setting(
        key="retention.ms",
        kind=_LIMIT,
        default="604800000",
        meaning="how long records stay, for policies with `delete`",
    ),
    Setting(
        key="retention.bytes",
        kind=_LIMIT,
        default="-1",
        meaning="how large a partition may become, for policies with `delete`",
    ),
    Setting(
        key="segment.bytes",
        # Kafka's own lower bound before its 4.0.
        kind=WholeNumber(low=14, high=INT_MAX),
        default="1073741824",
        meaning="size at which a WAL file is rolled, and up to which small segments are merged",
    ),
    Setting(
        key="segment.ms",
        kind=_INTERVAL_MS,
        default="604800000",
        meaning="age at which a WAL file is rolled",
    ),
    Setting(
        key="segment.compression.type",
        kind=Choice(("zstd", "lz4")),
        default="zstd",
        meaning="compression of sealed segments until compaction rewrites them. `lz4`: sealing and the next compaction "
        "take less time, and the segments are larger until then. Compaction always writes `zstd`",
    ),
    Setting(
        key="tiering.lag.ms",
        kind=_DURATION_MS,
        default="300000",
        meaning="the longest that a record waits in a WAL file before the file is rolled and sealed",
    ),
    Setting(
        key="local.retention.ms",
        kind=WholeNumber(unlimited=(-1,), special={-2: "as `retention.ms`"}),
        default="86400000",
        meaning="how long sealed WAL files stay on the local disk. `0`: a file is removed as soon as it is sealed",
    ),
    Setting(
        key="local.retention.bytes",
        kind=WholeNumber(unlimited=(-1,), special={-2: "as `retention.bytes`"}),
        default="10737418240",
        meaning="how large a partition's WAL on the local disk may become; only sealed files are removed for it",
    ),
    Setting(
        key="max.message.bytes",
        kind=_BYTES,
        default="1048588",
        meaning="the largest record batch that is accepted",
    ),
    Setting(
        key="message.timestamp.type",
        kind=Choice(("CreateTime", "LogAppendTime")),
        default="CreateTime",
        meaning="whether records keep the producer's timestamp or get the time of the append",
    ),
    Setting(
        key="message.timestamp.before.max.ms",
        kind=WholeNumber(unlimited=(LONG_MAX, -1), takes_none=True),
        default=str(LONG_MAX),
        meaning="a record whose timestamp is further in the past is refused",
    ),
    Setting(
        key="message.timestamp.after.max.ms",
        kind=_DURATION_MS,
        default="3600000",
        meaning="a record whose timestamp is further in the future is refused",
    ),
)

BROKER_SETTINGS: tuple[Setting, ...] = (
    Setting(
        key="kafka.listen",
        kind=Address(),
        default="127.0.0.1:9092",
        meaning="the address where `lastword serve` listens for Kafka clients",
    ),
    Setting(
        key="kafka.advertised",
        kind=Address(),
        default=None,
        unset="as `kafka.listen`; with `0.0.0.0` the address that a client has reached",
        meaning="the address that Kafka clients are told to connect to, if it is not `kafka.listen`",
    ),
    Setting(
        key="admin.listen",
        kind=Address(),
        default="127.0.0.1:9644",
        meaning="the address where `lastword serve` serves the admin API, `/metrics` and `/readyz`",
    ),
    Setting(
        key="admin.token.file",
        kind=Name("a file"),
        default=None,
        unset="no token",
        meaning="a file with the token that the admin API requires; needed unless it listens on this machine only",
    ),
    Setting(
        key="connect.file",
        kind=Name("a file"),
        default=None,
        unset="no sources",
        meaning="a file with sources that `lastword serve` runs, in the format of `lastword connect run`",
    ),
    Setting(
        key="wal.sync",
        kind=WalSyncKind(),
        default="group",
        meaning="when a produce request is answered. `group`: after a sync to disk, which requests that wait together "
        "share; `interval:<ms>`: at once, with a sync at this interval; `none`: at once, "
        "and the operating system decides when to sync",
    ),
    Setting(
        key="wal.max.bytes",
        kind=_LIMIT,
        default="-1",
        meaning="bound on the total size of the WAL of all topics; only sealed files are deleted for it",
    ),
    Setting(
        key="auto.create.topics.enable",
        kind=Switch(),
        default="true",
        meaning="whether a missing topic that a Kafka client asks for is created, with "
        "`num.partitions` and the settings of `topic.default_config`",
    ),
    Setting(
        key="num.partitions",
        kind=WholeNumber(low=1, high=10_000),
        default="1",
        meaning="the number of partitions of a topic that is created without one",
    ),
    Setting(
        key="socket.request.max.bytes",
        kind=WholeNumber(low=1024, high=(1 << 31) - 1),
        default="104857600",
        meaning="the largest request that a Kafka client may send",
    ),
    Setting(
        key="queued.max.request.bytes",
        kind=WholeNumber(low=1 << 20),
        default="268435456",
        meaning="bound on the memory for requests of all Kafka clients; beyond it no more requests are read",
    ),
    Setting(
        key="max.connections",
        kind=WholeNumber(low=1),
        default="10000",
        meaning="the most connections of Kafka clients at a time; further ones are closed at once",
    ),
    Setting(
        key="connections.max.idle.ms",
        kind=_INTERVAL_MS,
        default="600000",
        meaning="a connection that is idle for this long is closed",
    ),
    Setting(
        key="fetch.max.bytes",
        kind=WholeNumber(low=1024, high=(1 << 31) - 1),
        default="57671680",
        meaning="the largest answer to a fetch, whatever the client asks for; the first batch is "
        "always whole",
    ),
    Setting(
        key="fetch.cache.bytes",
        kind=WholeNumber(low=1 << 20),
        default="268435456",
        meaning="memory for sealed data that is read ahead for Kafka consumers and kept for later ones",
    ),
    Setting(
        key="producer.id.expiration.ms",
        kind=_INTERVAL_MS,
        default="86400000",
        meaning="how long the sequence numbers of an idle idempotent producer are kept",
    ),
    Setting(
        key="group.initial.rebalance.delay.ms",
        kind=_DURATION_MS,
        default="3000",
        meaning="how long the first rebalance of a consumer group waits for more members",
    ),
    Setting(
        key="group.min.session.timeout.ms",
        kind=WholeNumber(low=1, high=INT_MAX),
        default="6000",
        meaning="the shortest session timeout that a member of a consumer group may ask for",
    ),
    Setting(
        key="group.max.session.timeout.ms",
        kind=WholeNumber(low=1, high=INT_MAX),
        default="1800000",
        meaning="the longest session timeout that a member of a consumer group may ask for",
    ),
    Setting(
        key="group.max.size",
        kind=WholeNumber(low=1, high=INT_MAX),
        default=str(INT_MAX),
        meaning="the most members that a consumer group may have",
    ),
    Setting(
        key="offsets.retention.minutes",
        kind=WholeNumber(low=1, high=INT_MAX),
        default="10080",
        meaning="how long the committed offsets of a consumer group without members are kept",
    ),
    Setting(
        key="offsets.retention.check.interval.ms",
        kind=_INTERVAL_MS,
        default="600000",
        meaning="pause between two checks for expired committed offsets",
    ),
    Setting(
        key="offset.metadata.max.bytes",
        kind=_BYTES,
        default="4096",
        meaning="the longest text that may be committed with an offset",
    ),
    Setting(
        key="deleter.enabled",
        kind=Switch(),
        default="true",
        meaning="whether sealed WAL files are ever deleted",
    ),
    Setting(
        key="deleter.interval.ms",
        kind=_INTERVAL_MS,
        default="300000",
        meaning="pause between two cycles of the deleter",
    ),
    Setting(
        key="deleter.time.enabled",
        kind=Switch(),
        default="true",
        meaning="whether `local.retention.ms` is applied",
    ),
    Setting(
        key="deleter.size.enabled",
        kind=Switch(),
        default="true",
        meaning="whether `local.retention.bytes` and `wal.max.bytes` are applied",
    ),
    Setting(
        key="worker.initial.delay.ms",
        kind=_DURATION_MS,
        default="60000",
        meaning="time from the worker's first start to its first compaction; a restart does not reset it",
    ),
    Setting(
        key="worker.interval.ms",
        kind=_INTERVAL_MS,
        default="300000",
        meaning="pause between two checks for due compactions",
    ),
    Setting(
        key="worker.nice",
        kind=WholeNumber(low=0, high=19),
        default="10",
        meaning="the Unix nice value of `lastword worker` and its Spark; higher gives way more to other processes",
    ),
    Setting(
        key="seal.interval.ms",
        kind=_INTERVAL_MS,
        default="10000",
        meaning="pause between two checks for WAL files to roll and seal",
    ),
    Setting(
        key="retention.interval.ms",
        kind=_INTERVAL_MS,
        default="300000",
        meaning="pause between two rounds of retention of sealed segments",
    ),
    Setting(
        key="expire.interval.ms",
        kind=_INTERVAL_MS,
        default="300000",
        meaning="pause between two rounds that expire old snapshots",
    ),
    Setting(
        key="collect.interval.ms",
        kind=_INTERVAL_MS,
        default="900000",
        meaning="pause between two rounds that remove unreferenced files",
    ),
    Setting(
        key="compaction.service.factory",
        kind=Name("a class as `module:Class`"),
        default="lastword.compaction.spark:SparkCompactionServiceFactory",
        meaning="the compaction service: Spark, `lastword.compaction.inline:InlineCompactionServiceFactory` (in this "
        "process, without Java), or your own class",
    ),
    Setting(
        key="compaction.task.memory.bytes",
        kind=WholeNumber(low=1 << 20),
        default="1073741824",
        meaning="memory that one task may use for the keys of a partition; with more keys another algorithm is used",
    ),
    Setting(
        key="compaction.task.bytes",
        kind=WholeNumber(low=1 << 20),
        default="8589934592",
        meaning="a partition with more sealed bytes is spread over several tasks",
    ),
    Setting(
        key="reader.hold.ms",
        kind=_DURATION_MS,
        default="604800000",
        meaning="a named reader that was active within this time keeps the tombstones that it has not read yet",
    ),
    Setting(
        key="reader.hold.max.ms",
        kind=_DURATION_MS,
        default="2592000000",
        meaning="the longest that a tombstone waits for readers after its expiry",
    ),
    Setting(
        key="collect.grace.ms",
        kind=_DURATION_MS,
        default="3600000",
        meaning="how long a file stays after collection has found that no snapshot references it",
    ),
    Setting(
        key="snapshot.retention.ms",
        kind=_DURATION_MS,
        default="3600000",
        meaning="how long a snapshot of a topic's table stays after a newer one, for readers and time travel",
    ),
    Setting(
        key="lease.ttl.ms",
        kind=_INTERVAL_MS,
        default="60000",
        meaning="how long a job may be silent before its files count as abandoned",
    ),
    Setting(
        key="warehouse",
        kind=Name("a folder or the URI of a folder (`s3://…`)"),
        default=None,
        unset="`<data folder>/warehouse`",
        meaning="where sealed segments are stored",
    ),
)

TOPIC_KEYS = {setting.key: setting for setting in TOPIC_SETTINGS}
BROKER_KEYS = {setting.key: setting for setting in BROKER_SETTINGS}


def closest(key: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known key that the user may have meant, or None."""
    names = list(known)
    # Kafka's brokers have most topic settings under a prefix.
    without_prefix = key.removeprefix("log.")
    if without_prefix in names:
        return without_prefix
    return next(iter(get_close_matches(key, names, n=1, cutoff=cutoff)), None)


def unknown_setting(key: str, *, meant: str | None, where: str) -> InvalidConfigError:
    hint = "" if meant is None else f"; did you mean {meant!r}?"
    return InvalidConfigError(f"{where}: unknown setting {key!r}{hint}")


def _shown(raw: object) -> str:
    if raw is None:
        return "has no value"
    if isinstance(raw, dict):
        return "is a group of settings"
    text = repr(raw) if isinstance(raw, str | list | tuple) else str(raw)
    return f"is {text if len(text) <= 80 else text[:80] + '…'}"
