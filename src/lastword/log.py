"""The embedded log: open a data folder, and create, change, read and delete its topics.

A data folder:

    lastword.yaml   settings, if there is no other file given                       the user's
    FORMAT          the version of this layout
    locks/          who is the writer, who does maintenance
    wal/            the write-ahead logs                                            see lastword.wal
    catalog.db      the catalog of the tables (SQLite), unless the settings name another one
    warehouse/      the sealed segments, unless the settings name another place     see lastword.segments
    readers/        the positions that named readers committed
    leases/         jobs and replays that are running
    creating/       topics whose creation has been asked for and is not done yet
    deleting/       topics whose deletion has been asked for and is not done yet

Creation of a topic, by its steps: note it in creating/, create the table, remove the note. Killed at any point: the
next open finds the note, and if the catalog does not have the table, removes what was written for it.

Deletion of a topic, by its steps: note it in deleting/, mark the table, remove the WAL and the readers, drop the
table with its files, remove the note. Killed at any point: the next open goes on with it.
"""

from __future__ import annotations

import logging
import resource
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import UUID

from lastword import disk, leases, retention
from lastword.clock import Clock, SystemClock, new_uuid
from lastword.compaction.plan import PartitionPlan, urgency
from lastword.config import (
    BrokerConfig,
    EffectiveSetting,
    check_new_topic_name,
    check_topic_config,
    check_topic_name,
)
from lastword.errors import (
    ClosedError,
    InvalidConfigError,
    InvalidError,
    InvalidTopicError,
    LastwordError,
    StorageError,
    UnknownTopicError,
)
from lastword.leases import LeaseKeeper
from lastword.locks import Role, RoleLock
from lastword.readers import READERS_FOLDER, committed_positions
from lastword.retention import RetentionPlan
from lastword.segments.iceberg import IcebergCatalog, sqlite_properties
from lastword.segments.table import Collected, SegmentCatalog, SegmentTable, TopicInfo, retry_on_conflict
from lastword.steps import reached
from lastword.topic import Topic, wal_folder
from lastword.wal import deleter
from lastword.wal.flusher import Flusher
from lastword.wal.writer import PartitionWriter

if TYPE_CHECKING:
    from lastword.compacting import Compaction, TopicParts
    from lastword.compaction.job import CompactionReport

logger = logging.getLogger(__name__)

CONFIG_FILE = "lastword.yaml"
FORMAT_FILE = "FORMAT"
FORMAT = "1"
CREATING_FOLDER = "creating"
DELETING_FOLDER = "deleting"
MAX_PARTITIONS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceReport:
    """What one round of retention did to all topics, or with a dry run would do."""

    removed: tuple[RetentionPlan, ...] = ()
    wal: deleter.Deleted = field(default_factory=deleter.Deleted)
    expired_snapshots: Mapping[str, int] = field(default_factory=dict)
    collected: Mapping[str, Collected] = field(default_factory=dict)
    problems: tuple[tuple[str, str], ...] = ()
    """Topics for which something could not be done, and why. The others went on."""


def open(  # noqa: A001
    path: str | Path,
    *,
    config: BrokerConfig | Mapping[str, object] | str | Path | None = None,
    read_only: bool = False,
    create: bool = True,
    clock: Clock | None = None,
) -> Log:
    """Open the log in a data folder.

    `config` is a settings file, its content as a mapping, or None for `lastword.yaml` in the folder if there is
    one. There is one writer at a time: LockedError names it. With `read_only` nothing is locked or changed, and
    the log can be read while another process writes it. Without `create` the folder must be there already.
    """
    return Log(Path(path), config=config, read_only=read_only, create=create, clock=clock or SystemClock())


class Log:
    """An open log. Close it, or use it in a `with` statement."""

    def __init__(
        self,
        path: Path,
        *,
        config: BrokerConfig | Mapping[str, object] | str | Path | None,
        read_only: bool,
        create: bool,
        clock: Clock,
    ) -> None:
        self.path = path.absolute()
        self.config = _load_config(self.path, config)
        self._clock = clock
        self._read_only = read_only
        _check_folder(self.path, create=create and not read_only)
        self._topics: dict[str, Topic] = {}
        self._topics_lock = threading.RLock()
        self._maintenance_lock = threading.RLock()
        self._maintenance_depth = 0
        self._closed = False
        self._writer_role = None if read_only else RoleLock.acquire(self.path, Role.WRITER, clock)
        self._flusher: Flusher | None = None
        self._compaction: Compaction | None = None
        try:
            self._leases = LeaseKeeper(self.path, clock, self.config.lease_ttl_ms)
            self._catalog: SegmentCatalog = _open_catalog(self.path, self.config, clock)
            if not read_only:
                _allow_many_files()
                self._finish_creations()
                self._finish_deletions()
                if self.config.wal_sync.mode == "interval":
                    assert self.config.wal_sync.interval_ms is not None
                    self._flusher = Flusher(self._writers, self.config.wal_sync.interval_ms)
        except BaseException:
            if self._writer_role is not None:
                self._writer_role.release()
            raise

    # ------------------------------------------------------------------------------------------- topics

    def create_topic(
        self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> Topic:
        """Create a topic; `config` are the settings that it has of its own."""
        self._check_writer()
        own = check_topic_config(config or {}, where=f"topic {name!r}")
        _check_partition_count(name, partitions)
        with self._topics_lock:
            self._finish_deletions()
            check_new_topic_name(name, self._catalog.list())
            self.config.resolve(name, own)
            info = TopicInfo(name=name, id=new_uuid(), partitions=partitions, config=own)
            note = self.path / CREATING_FOLDER / info.id.hex
            _write_note(note, name)
            reached("topic.creation.noted")
            # After a failure the note stays: only the next open knows for sure whether the table was made.
            self._catalog.create(info)
            reached("topic.created")
            note.unlink(missing_ok=True)
            return self.topic(name)

    def topic(self, name: str) -> Topic:
        """An existing topic; UnknownTopicError if there is none of that name."""
        self._check_open()
        with self._topics_lock:
            topic = self._topics.get(name)
            if topic is not None and self._read_only:
                topic = self._looked_at_again(topic)
            if topic is None:
                topic = self._open_topic(name)
                self._topics[name] = topic
            return topic

    def topics(self) -> list[str]:
        """The names of all topics."""
        self._check_open()
        return [info.name for info in self.topic_infos()]

    def topic_infos(self) -> list[TopicInfo]:
        """All topics, without opening their WALs."""
        self._check_open()
        infos = [self._catalog.load(name).snapshot().topic for name in self._catalog.list()]
        return [info for info in infos if not info.deleted]

    def alter_topic(
        self,
        name: str,
        *,
        set_config: Mapping[str, object] | None = None,
        unset: Iterable[str] = (),
        partitions: int | None = None,
    ) -> Topic:
        """Change settings of a topic, take them back, or add partitions. Everything is applied, or nothing."""
        self._check_writer()
        topic = self.topic(name)
        changed = check_topic_config(set_config or {}, where=f"topic {name!r}")
        removed = set(unset)
        unknown = sorted(removed - set(topic.config) - set(changed))
        if unknown:
            raise InvalidConfigError(
                f"topic {name!r} has no setting {unknown[0]!r} of its own to take back; "
                f"it has {', '.join(sorted(topic.config)) or 'none'}"
            )
        if partitions is not None:
            _check_partition_count(name, partitions)
            if partitions < topic.partitions:
                raise InvalidTopicError(
                    f"topic {name!r} has {topic.partitions} partitions; {partitions} are fewer, "
                    f"and partitions can't be taken away"
                )
        table = self._catalog.load(name)

        def attempt() -> TopicInfo:
            base = table.snapshot()
            own = {key: value for key, value in base.topic.config.items() if key not in removed} | changed
            self.config.resolve(name, own)
            return table.alter(base, config=own, partitions=partitions).topic

        before = topic.partitions
        topic.changed(retry_on_conflict(attempt))
        if topic.partitions > before and topic.settings.compacts:
            logger.warning(
                "%s is compacted and has %d partitions now: keys that belong to another one from now on are in "
                "two of them, until compaction and retention have taken the older records",
                name,
                topic.partitions,
            )
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic with everything that belongs to it."""
        self._check_writer()
        check_topic_name(name)
        with self._topics_lock:
            table = self._load(name)
            info = table.snapshot().topic
            opened = self._topics.pop(name, None)
            if opened is not None:
                try:
                    opened.close()
                except LastwordError as error:
                    logger.warning("closing %s, which is being deleted: %s", name, error)
            note = self.path / DELETING_FOLDER / info.id.hex
            _write_note(note, name)
            reached("topic.deletion.noted")
            retry_on_conflict(lambda: table.alter(table.snapshot(), deleted=True))
            reached("topic.deletion.marked")
            if self._compaction is not None:
                self._compaction.forget(name)
            self._finish_deletion(note)

    def explain_config(self, topic: str | None = None) -> list[EffectiveSetting]:
        """Each effective setting and where it comes from: the broker's, or with a topic that topic's."""
        self._check_open()
        if topic is None:
            return self.config.explain()
        return self.config.explain(topic, self._load(topic).snapshot().topic.config)

    # --------------------------------------------------------------------------------------- maintenance

    def run_retention(
        self, *, dry_run: bool = False, topics: Iterable[str] | None = None
    ) -> MaintenanceReport:
        """One round for all topics, or some: retention, WAL retention, expiry of snapshots, collection of files.

        It works on what is sealed and touches nothing else. What fails for one topic is reported, and the
        others go on. A dry run changes nothing, and needs no role: it can be asked of a log that is read only.
        """
        self._check_open()
        with nullcontext() if dry_run else self.maintenance():
            now_ms = self._clock.now_ms()
            removed: list[RetentionPlan] = []
            wals: list[deleter.LocalWal] = []
            expired: dict[str, int] = {}
            collected: dict[str, Collected] = {}
            problems: list[tuple[str, str]] = []
            wanted = None if topics is None else set(topics)
            infos = self.topic_infos()
            if unknown := sorted((wanted or set()) - {info.name for info in infos}):
                raise UnknownTopicError(f"there is no topic {unknown[0]!r}")
            for info in [info for info in infos if wanted is None or info.name in wanted]:
                try:
                    table = self._catalog.load(info.name)
                    topic = self.topic(info.name)
                    own_wals = topic.local_wals()
                    unsealed = _unsealed_bytes(info.partitions, own_wals)
                    removed.append(retention.apply(table, unsealed, topic.settings, now_ms, dry_run=dry_run))
                    wals += own_wals
                    expired[info.name] = len(
                        retention.expire(table, self.path, self.config, now_ms, dry_run=dry_run)
                    )
                    collected[info.name] = retention.collect(
                        table, self.path, self.config, now_ms, dry_run=dry_run
                    )
                except LastwordError as error:
                    logger.error("retention of %s: %s", info.name, error)
                    problems.append((info.name, str(error)))
            deletions = deleter.propose(wals, self.config, now_ms) if self.config.deleter_enabled else []
            if dry_run:
                wal = deleter.Deleted(deletions=tuple(deletions))
            else:
                wal = deleter.execute(wals, deletions, now_ms)
                leases.sweep(self.path, now_ms - self.config.collect_grace_ms)
                self._finish_deletions()
            return MaintenanceReport(
                removed=tuple(removed),
                wal=wal,
                expired_snapshots=expired,
                collected=collected,
                problems=tuple(problems),
            )

    def compact(
        self,
        topics: Iterable[str] | None = None,
        *,
        partitions: Sequence[int] | None = None,
        seal: bool = False,
        asked_for: bool = False,
        force: bool = False,
        progress: Callable[[int, int, int, int], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> CompactionReport:
        """Compact what is due in all topics, or in some, as one job.

        With `asked_for` whatever is dirty is compacted, also below the dirty ratio; with `force` everything that
        may be. `seal` first rolls and seals what is in the WAL. `progress` gets records done, records in all,
        bytes done, bytes in all; `stop` is asked between commits.
        """
        from lastword.compaction.service import CompactionRequest

        self._check_open()
        with self.maintenance():
            names = self._compacted_names(topics)
            if seal:
                for name in names:
                    self.topic(name).seal()
            request = CompactionRequest(
                partitions=None if partitions is None else tuple(partitions),
                asked_for=asked_for,
                force=force,
                progress=progress,
                stop=stop,
            )
            return self.compaction.run(names, request)

    def plan_compaction(
        self,
        topics: Iterable[str] | None = None,
        *,
        partitions: Sequence[int] | None = None,
        asked_for: bool = False,
        force: bool = False,
    ) -> list[PartitionPlan]:
        """What `compact` would do now, the most urgent first. Nothing is changed."""
        self._check_open()
        plans = [
            plan
            for name in self._compacted_names(topics)
            for plan in self.compaction.plan(name, partitions=partitions, asked_for=asked_for, force=force)
        ]
        return sorted(plans, key=urgency)

    @property
    def compaction(self) -> Compaction:
        """The compaction of this log's topics."""
        with self._topics_lock:
            if self._compaction is None:
                # Loads compiled code, which logs that are only read or written do without.
                from lastword.compacting import Compaction

                self._compaction = Compaction(
                    self._compaction_parts,
                    config=self.config,
                    data_folder=self.path,
                    clock=self._clock,
                    leases=self._leases,
                )
            return self._compaction

    @contextmanager
    def maintenance(self) -> Iterator[None]:
        """Hold the maintenance role: sealing, retention and collection are one process's at a time."""
        self._check_writer()
        with self._maintenance_lock:
            if self._maintenance_depth == 0:
                self._maintenance_role = RoleLock.acquire(self.path, Role.MAINTENANCE, self._clock)
            self._maintenance_depth += 1
            try:
                yield
            finally:
                self._maintenance_depth -= 1
                if self._maintenance_depth == 0:
                    self._maintenance_role.release()

    def close(self) -> None:
        """Close every topic's WAL in order and give the folder back."""
        if self._closed:
            return
        self._closed = True
        if self._flusher is not None:
            self._flusher.close()
        errors: list[LastwordError] = []
        for topic in self._topics.values():
            try:
                topic.close()
            except LastwordError as error:
                errors.append(error)
        try:
            if self._compaction is not None:
                self._compaction.close()
            self._leases.close()
            self._catalog.close()
        finally:
            if self._writer_role is not None:
                self._writer_role.release()
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ internal

    def _open_topic(self, name: str) -> Topic:
        table = self._load(name)
        return Topic(
            table.snapshot().topic,
            table,
            data_folder=self.path,
            config=self.config,
            clock=self._clock,
            leases=self._leases,
            maintenance=None if self._read_only else self.maintenance,
        )

    def _compacted_names(self, topics: Iterable[str] | None) -> list[str]:
        return self.topics() if topics is None else [self.topic(name).name for name in topics]

    def _compaction_parts(self, name: str) -> TopicParts:
        topic = self.topic(name)
        table = self._load(name)
        log_ends = {partition: extent.log_end for partition, extent in topic.extents().items()}
        return table, topic.settings, log_ends, committed_positions(self.path, topic.id.hex)

    def _looked_at_again(self, topic: Topic) -> Topic | None:
        """The topic as another process may have changed it; None if it is another one now."""
        info = self._load(topic.name).snapshot().topic
        if info.id != topic.id:
            return None
        topic.changed(info)
        return topic

    def _load(self, name: str) -> SegmentTable:
        table = self._catalog.load(name)
        if table.snapshot().topic.deleted:
            raise UnknownTopicError(f"topic {name!r} has been deleted")
        return table

    def _writers(self) -> list[PartitionWriter]:
        with self._topics_lock:
            return [writer for topic in self._topics.values() for writer in topic.writers()]

    def _finish_creations(self) -> None:
        """Remove what creations that were cut short have left. Only at the start: no creation is under way."""
        for note in _notes(self.path / CREATING_FOLDER):
            try:
                name = note.read_text()
                if note.name not in {info.id.hex for info in self._infos_of(name)}:
                    self._catalog.abandon(name, UUID(note.name))
                note.unlink(missing_ok=True)
            except (LastwordError, OSError) as error:
                logger.warning("what is left of the creation of a topic is removed later: %s", error)

    def _infos_of(self, name: str) -> list[TopicInfo]:
        try:
            return [self._catalog.load(name).snapshot().topic]
        except UnknownTopicError:
            return []

    def _finish_deletions(self) -> None:
        for note in _notes(self.path / DELETING_FOLDER):
            try:
                self._finish_deletion(note)
            except (LastwordError, OSError) as error:
                logger.warning("the deletion of a topic is not done yet and is tried again: %s", error)

    def _finish_deletion(self, note: Path) -> None:
        name = note.read_text()
        try:
            table: SegmentTable | None = self._catalog.load(name)
        except UnknownTopicError:
            table = None
        info = table.snapshot().topic if table is not None else None
        if table is not None and info is not None and info.id.hex == note.name:
            if not info.deleted:
                retry_on_conflict(lambda: table.alter(table.snapshot(), deleted=True))
            folder = wal_folder(self.path, info)
            _remove_tree(folder)
            reached("topic.deletion.wal_removed")
            _remove_tree(self.path / READERS_FOLDER / info.id.hex)
            self._catalog.drop(name)
            reached("topic.deletion.dropped")
        note.unlink(missing_ok=True)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"The log in {self.path} has been closed.")

    def _check_writer(self) -> None:
        self._check_open()
        if self._read_only:
            raise InvalidError("The log was opened for reading only; open it without read_only to change it.")


def _load_config(
    folder: Path, config: BrokerConfig | Mapping[str, object] | str | Path | None
) -> BrokerConfig:
    if isinstance(config, BrokerConfig):
        return config
    if isinstance(config, Mapping):
        return BrokerConfig.from_mapping(config, where="config")
    if config is not None:
        return BrokerConfig.load(Path(config))
    own = folder / CONFIG_FILE
    return BrokerConfig.load(own if own.exists() else None)


def _check_folder(folder: Path, *, create: bool) -> None:
    marker = folder / FORMAT_FILE
    if marker.exists():
        found = marker.read_text().strip()
        if found != FORMAT:
            raise InvalidError(
                f"{folder} has the data format {found!r}; this version of Lastword reads {FORMAT!r} only."
            )
        return
    if not create:
        raise InvalidError(
            f"There is no Lastword data in {folder}. `lastword topic create` starts a log there."
        )
    if folder.exists() and not folder.is_dir():
        raise InvalidError(f"{folder} is not a folder.")
    # A process that was killed while it wrote the marker leaves its temporary file.
    ours = {CONFIG_FILE, f"{FORMAT_FILE}.tmp"}
    foreign = [each for each in folder.iterdir() if each.name not in ours] if folder.exists() else []
    if foreign:
        raise InvalidError(
            f"{folder} is not empty and has no Lastword data in it ({foreign[0].name} is there). "
            f"Name an empty or a new folder."
        )
    disk.make_folder(folder)
    disk.replace_file(marker, f"{FORMAT}\n".encode())


def _open_catalog(folder: Path, config: BrokerConfig, clock: Clock) -> SegmentCatalog:
    properties = dict(config.catalog)
    if not {"type", "uri"} & set(properties):
        properties |= sqlite_properties(folder / "catalog.db")
    warehouse = config.warehouse or properties.pop("warehouse", None) or str(folder / "warehouse")
    return IcebergCatalog.open(properties=properties, warehouse=warehouse, clock=clock)


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _check_partition_count(name: str, partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidTopicError(
            f"topic {name!r} can't have {partitions} partitions; 1 to {MAX_PARTITIONS} are allowed"
        )


def _unsealed_bytes(partitions: int, wals: Iterable[deleter.LocalWal]) -> list[int]:
    unsealed = [0] * partitions
    for wal in wals:
        unsealed[wal.partition] = sum(
            file.size_bytes or 0
            for file in wal.files
            if file.end_offset is None or file.end_offset > wal.sealed_end
        )
    return unsealed


def _write_note(note: Path, name: str) -> None:
    try:
        disk.make_folder(note.parent)
        disk.replace_file(note, name.encode())
    except OSError as error:
        raise StorageError(
            f"Can't write {note}: {error.strerror or error}. Nothing has been done to the topic {name!r}."
        ) from error


def _notes(folder: Path) -> list[Path]:
    """The notes in a folder. One that a killed process was still writing says nothing, and goes."""
    found = sorted(folder.iterdir()) if folder.exists() else []
    for unfinished in [note for note in found if note.suffix]:
        unfinished.unlink(missing_ok=True)
    return [note for note in found if not note.suffix]


def _remove_tree(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
        parent = folder.parent
        if not any(parent.iterdir()):
            parent.rmdir()
            parent = parent.parent
        # The note that leads here goes next: a power cut must not bring back the folder without it.
        disk.sync_folder(parent)
