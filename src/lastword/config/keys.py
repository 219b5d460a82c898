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


@dataclass(frozen=True, slots=True)
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
        "cleanup.policy",
        CleanupPolicy(),
        "delete",
        "`delete` drops records older than the retention, `compact` keeps the last record of each key, "
        "`compact,delete` (in either order) does both",
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        Ratio(),
        "0.5",
        "a partition is compacted when its share of uncompacted data reaches this. `0`: as soon as it has been sealed",
    ),
    Setting(
        "dirty.ratio.basis",
        Choice(("bytes", "records")),
        "bytes",
        "how that share is measured. `bytes`: dirty bytes out of all bytes; "
        "`records`: estimated superseded records out of all records",
    ),
    Setting(
        "min.compaction.lag.ms",
        _DURATION_MS,
        "0",
        "a segment whose newest record is younger is not compacted, nor is any after it",
    ),
    Setting(
        "max.compaction.lag.ms",
        WholeNumber(low=1, unlimited=(LONG_MAX, -1), takes_none=True),
        str(LONG_MAX),
        "a dirty segment whose oldest record is older makes the partition due, whatever its ratio",
    ),
    Setting(
        "delete.retention.ms",
        _DURATION_MS,
        "86400000",
        "how long a tombstone stays readable before compaction may remove it",
    ),
    Setting(
        "tombstone.clock",
        Choice(("compaction", "record")),
        "compaction",
        "the start of `delete.retention.ms`. `compaction`: the first compaction that passes the "
        "tombstone, as in Kafka; `record`: the tombstone's timestamp",
    ),
    Setting(
        "compaction.strategy",
        Choice(("offset", "first", "timestamp", "header")),
        "offset",
        "which record of a key stays: the newest, the oldest, the one with the highest timestamp, "
        "or the one with the highest version in a header",
    ),
    Setting(
        "compaction.strategy.header",
        Name("the name of a header"),
        None,
        "the header that has the version; required by `compaction.strategy=header`. "
        "If a record has several of that name, the last one counts",
    ),
    Setting(
        "compaction.strategy.header.format",
        Choice(("long", "text")),
        None,
        "how the version is written: `long` is 8 bytes, big-endian, signed; `text` is a decimal number. "
        "Required by `compaction.strategy=header`",
    ),
    Setting(
        "compaction.strategy.header.missing",
        Choice(("reject", "lowest")),
        "reject",
        "a record without a readable version is refused when it is produced (`reject`), "
        "or loses to every record that has one (`lowest`)",
    ),
    Setting(
        "null.key",
        Choice(("keep", "reject")),
        "keep",
        "on compacted topics, records without a key are kept by compaction, or refused when produced "
        "(`reject`, as in Kafka)",
    ),
    Setting(
        "min.rewrite.ratio",
        Ratio(),
        "0.3",
        "a segment is rewritten when at least this share of its rows is gone; below it they are marked, which costs "
        "space, but no record more is visible. `0`: every run rewrites",
    ),
    Setting(
        "garbage.max.ms",
        _LIMIT,
        "604800000",
        "marked rows that are older cause their segment to be rewritten. So does `max.compaction.lag.ms`",
    ),
    Setting(
        "compaction.at.seal",
        Switch(),
        "true",
        "on compacted topics, of records that are sealed together only those are written that no other of them "
        "supersedes. Records that `min.compaction.lag.ms` holds back are always written",
    ),
    Setting("retention.ms", _LIMIT, "604800000", "how long records stay, for policies with `delete`"),
    Setting("retention.bytes", _LIMIT, "-1", "how large a partition may become, for policies with `delete`"),
    Setting(
        "segment.bytes",
        WholeNumber(low=14, high=INT_MAX),
        "1073741824",
        "size at which a WAL file is rolled, and up to which small segments are merged",
    ),
    Setting("segment.ms", _INTERVAL_MS, "604800000", "age at which a WAL file is rolled"),
    Setting(
        "segment.compression.type",
        Choice(("zstd", "lz4")),
        "zstd",
        "compression of sealed segments until compaction rewrites them. `lz4`: sealing and the next compaction "
        "take less time, and the segments are larger until then. Compaction always writes `zstd`",
    ),
    Setting(
        "tiering.lag.ms",
        _DURATION_MS,
        "300000",
        "the longest that a record waits in a WAL file before the file is rolled and sealed",
    ),
    Setting(
        "local.retention.ms",
        WholeNumber(unlimited=(-1,), special={-2: "as `retention.ms`"}),
        "86400000",
        "how long sealed WAL files stay on the local disk. `0`: a file is removed as soon as it is sealed",
    ),
    Setting(
        "local.retention.bytes",
        WholeNumber(unlimited=(-1,), special={-2: "as `retention.bytes`"}),
        "10737418240",
        "how large a partition's WAL on the local disk may become; only sealed files are removed for it",
    ),
    Setting("max.message.bytes", _BYTES, "1048588", "the largest record batch that is accepted"),
    Setting(
        "message.timestamp.type",
        Choice(("CreateTime", "LogAppendTime")),
        "CreateTime",
        "whether records keep the producer's timestamp or get the time of the append",
    ),
    Setting(
        "message.timestamp.before.max.ms",
        WholeNumber(unlimited=(LONG_MAX, -1), takes_none=True),
        str(LONG_MAX),
        "a record whose timestamp is further in the past is refused",
    ),
    Setting(
        "message.timestamp.after.max.ms",
        _DURATION_MS,
        "3600000",
        "a record whose timestamp is further in the future is refused",
    ),
)

BROKER_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "kafka.listen",
        Address(),
        "127.0.0.1:9092",
        "the address where `lastword serve` listens for Kafka clients",
    ),
    Setting(
        "kafka.advertised",
        Address(),
        None,
        "the address that Kafka clients are told to connect to, if it is not `kafka.listen`",
        unset="as `kafka.listen`; with `0.0.0.0` the address that a client has reached",
    ),
    Setting(
        "admin.listen",
        Address(),
        "127.0.0.1:9644",
        "the address where `lastword serve` serves the admin API, `/metrics` and `/readyz`",
    ),
    Setting(
        "admin.token.file",
        Name("a file"),
        None,
        "a file with the token that the admin API requires; needed unless it listens on this machine only",
        unset="no token",
    ),
    Setting(
        "connect.file",
        Name("a file"),
        None,
        "a file with sources that `lastword serve` runs, in the format of `lastword connect run`",
        unset="no sources",
    ),
    Setting(
        "wal.sync",
        WalSyncKind(),
        "group",
        "when a produce request is answered. `group`: after a sync to disk, which requests that wait together "
        "share; `interval:<ms>`: at once, with a sync at this interval; `none`: at once, "
        "and the operating system decides when to sync",
    ),
    Setting(
        "wal.max.bytes",
        _LIMIT,
        "-1",
        "bound on the total size of the WAL of all topics; only sealed files are deleted for it",
    ),
    Setting(
        "auto.create.topics.enable",
        Switch(),
        "true",
        "whether a missing topic that a Kafka client asks for is created, with "
        "`num.partitions` and the settings of `topic.default_config`",
    ),
    Setting(
        "num.partitions",
        WholeNumber(low=1, high=10_000),
        "1",
        "the number of partitions of a topic that is created without one",
    ),
    Setting(
        "socket.request.max.bytes",
        WholeNumber(low=1024, high=(1 << 31) - 1),
        "104857600",
        "the largest request that a Kafka client may send",
    ),
    Setting(
        "queued.max.request.bytes",
        WholeNumber(low=1 << 20),
        "268435456",
        "bound on the memory for requests of all Kafka clients; beyond it no more requests are read",
    ),
    Setting(
        "max.connections",
        WholeNumber(low=1),
        "10000",
        "the most connections of Kafka clients at a time; further ones are closed at once",
    ),
    Setting(
        "connections.max.idle.ms", _INTERVAL_MS, "600000", "a connection that is idle for this long is closed"
    ),
    Setting(
        "fetch.max.bytes",
        WholeNumber(low=1024, high=(1 << 31) - 1),
        "57671680",
        "the largest answer to a fetch, whatever the client asks for; the first batch is always whole",
    ),
    Setting(
        "fetch.cache.bytes",
        WholeNumber(low=1 << 20),
        "268435456",
        "memory for sealed data that is read ahead for Kafka consumers and kept for later ones",
    ),
    Setting(
        "producer.id.expiration.ms",
        _INTERVAL_MS,
        "86400000",
        "how long the sequence numbers of an idle idempotent producer are kept",
    ),
    Setting(
        "group.initial.rebalance.delay.ms",
        _DURATION_MS,
        "3000",
        "how long the first rebalance of a consumer group waits for more members",
    ),
    Setting(
        "group.min.session.timeout.ms",
        WholeNumber(low=1, high=INT_MAX),
        "6000",
        "the shortest session timeout that a member of a consumer group may ask for",
    ),
    Setting(
        "group.max.session.timeout.ms",
        WholeNumber(low=1, high=INT_MAX),
        "1800000",
        "the longest session timeout that a member of a consumer group may ask for",
    ),
    Setting(
        "group.max.size",
        WholeNumber(low=1, high=INT_MAX),
        str(INT_MAX),
        "the most members that a consumer group may have",
    ),
    Setting(
        "offsets.retention.minutes",
        WholeNumber(low=1, high=INT_MAX),
        "10080",
        "how long the committed offsets of a consumer group without members are kept",
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        _INTERVAL_MS,
        "600000",
        "pause between two checks for expired committed offsets",
    ),
    Setting(
        "offset.metadata.max.bytes", _BYTES, "4096", "the longest text that may be committed with an offset"
    ),
    Setting("deleter.enabled", Switch(), "true", "whether sealed WAL files are ever deleted"),
    Setting("deleter.interval.ms", _INTERVAL_MS, "300000", "pause between two cycles of the deleter"),
    Setting("deleter.time.enabled", Switch(), "true", "whether `local.retention.ms` is applied"),
    Setting(
        "deleter.size.enabled",
        Switch(),
        "true",
        "whether `local.retention.bytes` and `wal.max.bytes` are applied",
    ),
    Setting(
        "worker.initial.delay.ms",
        _DURATION_MS,
        "60000",
        "time from the worker's first start to its first compaction; a restart does not reset it",
    ),
    Setting("worker.interval.ms", _INTERVAL_MS, "300000", "pause between two checks for due compactions"),
    Setting(
        "worker.nice",
        WholeNumber(low=0, high=19),
        "10",
        "the Unix nice value of `lastword worker` and its Spark; higher gives way more to other processes",
    ),
    Setting(
        "seal.interval.ms", _INTERVAL_MS, "10000", "pause between two checks for WAL files to roll and seal"
    ),
    Setting(
        "retention.interval.ms",
        _INTERVAL_MS,
        "300000",
        "pause between two rounds of retention of sealed segments",
    ),
    Setting(
        "expire.interval.ms", _INTERVAL_MS, "300000", "pause between two rounds that expire old snapshots"
    ),
    Setting(
        "collect.interval.ms",
        _INTERVAL_MS,
        "900000",
        "pause between two rounds that remove unreferenced files",
    ),
    Setting(
        "compaction.service.factory",
        Name("a class as `module:Class`"),
        "lastword.compaction.spark:SparkCompactionServiceFactory",
        "the compaction service: Spark, `lastword.compaction.inline:InlineCompactionServiceFactory` (in this "
        "process, without Java), or your own class",
    ),
    Setting(
        "compaction.task.memory.bytes",
        WholeNumber(low=1 << 20),
        "1073741824",
        "memory that one task may use for the keys of a partition; with more keys another algorithm is used",
    ),
    Setting(
        "compaction.task.bytes",
        WholeNumber(low=1 << 20),
        "8589934592",
        "a partition with more sealed bytes is spread over several tasks",
    ),
    Setting(
        "reader.hold.ms",
        _DURATION_MS,
        "604800000",
        "a named reader that was active within this time keeps the tombstones that it has not read yet",
    ),
    Setting(
        "reader.hold.max.ms",
        _DURATION_MS,
        "2592000000",
        "the longest that a tombstone waits for readers after its expiry",
    ),
    Setting(
        "collect.grace.ms",
        _DURATION_MS,
        "3600000",
        "how long a file stays after collection has found that no snapshot references it",
    ),
    Setting(
        "snapshot.retention.ms",
        _DURATION_MS,
        "3600000",
        "how long a snapshot of a topic's table stays after a newer one, for readers and time travel",
    ),
    Setting(
        "lease.ttl.ms",
        _INTERVAL_MS,
        "60000",
        "how long a job may be silent before its files count as abandoned",
    ),
    Setting(
        "warehouse",
        Name("a folder or the URI of a folder (`s3://…`)"),
        None,
        "where sealed segments are stored",
        unset="`<data folder>/warehouse`",
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
