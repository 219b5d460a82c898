"""The state of a partition's idempotent producers, so that a batch that is resent is not appended again.

It holds, for each producer, its epoch and the sequence numbers and offsets of its last five batches, as many as a
client has in flight. It is saved to `producers.json` before the first producer's first batch and at each roll and
close, with the offset up to which it is complete. Later changes are in the WAL's batches: the deleter keeps those
files, and an unclean open reads them and saves the state again. So without such a file there are no producers, and
after a failed save the earlier file and the WAL still have everything.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lastword import batch
from lastword.batch import BatchHeader
from lastword.errors import CorruptError, FencedProducerError, OutOfOrderSequenceError, WriteFailedError
from lastword.folder import state_file
from lastword.folder.paths import PRODUCERS_FILE
from lastword.wal.files import WalFile

logger = logging.getLogger(__name__)

BATCHES_KEPT: Final = 5
SEQUENCES: Final = 1 << 31
"""Sequence numbers go from 0 up to but excluding this, then start again at 0."""


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch of a producer: its sequence numbers and its offsets, both ends included."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """A known producer of a partition, as of its last batch."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    last_ms: int
    batches: list[SentBatch] = field(default_factory=list)


class ProducerStates:
    """The producers of one partition. The partition's writer calls it, under its lock."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def find_duplicate(self, header: BatchHeader) -> SentBatch | None:
        """Return the batch that this one resends; None if it is the next one of its producer.

        Raise FencedProducerError if a newer producer has taken over the id, OutOfOrderSequenceError if batches before
        it are missing.
        """
        known = self._producers.get(header.producer_id)
        if known is None:
            # A producer that was forgotten after a long silence may continue too.
            return None
        if header.producer_epoch < known.epoch:
            raise FencedProducerError(
                f"producer {header.producer_id} has epoch {header.producer_epoch}; {known.epoch} was seen before"
            )
        first = header.base_sequence
        if header.producer_epoch > known.epoch:
            if first != 0:
                raise OutOfOrderSequenceError(
                    f"producer {header.producer_id} begins epoch {header.producer_epoch} with sequence {first}; "
                    f"it must be 0"
                )
            return None
        last = _last_sequence(header)
        for sent in known.batches:
            if sent.first_sequence == first and sent.last_sequence == last:
                return sent
        if known.batches and first != (known.batches[-1].last_sequence + 1) % SEQUENCES:
            raise OutOfOrderSequenceError(
                f"producer {header.producer_id} sends sequence {first}; the last one was "
                f"{known.batches[-1].last_sequence}"
            )
        return None

    def appended(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Note a batch that is in the log now."""
        known = self._producers.get(header.producer_id)
        if known is None or header.producer_epoch != known.epoch:
            known = self._producers[header.producer_id] = _Producer(header.producer_epoch, now_ms)
        known.last_ms = now_ms
        known.batches.append(
            SentBatch(
                first_sequence=header.base_sequence,
                last_sequence=_last_sequence(header),
                first_offset=base_offset,
                last_offset=base_offset + header.last_offset_delta,
                timestamp_ms=header.max_timestamp_ms,
            )
        )
        del known.batches[:-BATCHES_KEPT]

    def active(self) -> list[ActiveProducer]:
        """Return every known producer, ordered by id."""
        return [
            ActiveProducer(
                producer_id=producer_id,
                epoch=known.epoch,
                last_sequence=known.batches[-1].last_sequence,
                last_timestamp_ms=known.batches[-1].timestamp_ms,
            )
            for producer_id, known in sorted(self._producers.items())
            if known.batches
        ]

    def expire(self, before_ms: int) -> None:
        """Forget producers that have been silent since a time."""
        for producer_id in [each for each, known in self._producers.items() if known.last_ms < before_ms]:
            del self._producers[producer_id]

    def save(self, folder: Path, end_offset: int) -> None:
        """Save everything, complete up to `end_offset`."""
        saved = {
            "version": 1,
            "offset": end_offset,
            "producers": [
                [producer_id, known.epoch, known.last_ms, [_to_list(sent) for sent in known.batches]]
                for producer_id, known in self._producers.items()
            ],
        }
        state_file.save(folder / PRODUCERS_FILE, saved)

    def take(self, saved: list[list[object]], end_offset: int) -> None:
        for producer_id, epoch, last_ms, batches in saved:
            sent = [SentBatch(*each) for each in batches]  # type: ignore[attr-defined]
            kept = [each for each in sent if each.last_offset < end_offset]
            if kept:
                self._producers[int(producer_id)] = _Producer(int(epoch), int(last_ms), kept)  # type: ignore[call-overload]


class KnownProducers:
    """The producers of a partition that is being written. The partition's writer calls it, under its lock."""

    def __init__(
        self, folder: Path, load_states: Callable[[], ProducerStates], expiration_ms: int | None
    ) -> None:
        self._folder = folder
        self._load_states = load_states
        self._expiration_ms = expiration_ms
        self._states: ProducerStates | None = None
        self._is_expected = False

    @property
    def states(self) -> ProducerStates:
        """The state, loaded when needed: most open partitions never get a batch."""
        if self._states is None:
            self._states = self._load_states()
        return self._states

    def expect(self, end_offset: int) -> None:
        """Note on disk, before the first batch of a producer, that there are some, so that a crash loses none."""
        if not self._is_expected and not exists(self._folder):
            try:
                self.states.save(self._folder, end_offset)
            except OSError as error:
                raise WriteFailedError(
                    f"Can't write {self._folder / PRODUCERS_FILE}: {error.strerror or error}. "
                    f"Nothing was appended; free some space and try again."
                ) from error
        self._is_expected = True

    def save(self, end_offset: int, now_ms: int) -> None:
        """Save the state. If that fails, the deleter keeps the files that still have it."""
        try:
            known = self.states
            if self._expiration_ms is not None:
                known.expire(now_ms - self._expiration_ms)
            if len(known) or exists(self._folder):
                known.save(self._folder, end_offset)
        except OSError as error:
            logger.warning("can't save the producer state to %s: %s", self._folder, error)


def exists(folder: Path) -> bool:
    return (folder / PRODUCERS_FILE).exists()


def saved_offset(folder: Path) -> int | None:
    """Return the offset up to which the saved state is complete; None if none has ever been saved."""
    saved = _read(folder)
    return None if saved is None else saved[0]


def load(folder: Path, files: Iterable[WalFile], *, end_offset: int, end_position: int) -> ProducerStates:
    """Load the saved state and apply the WAL's batches since. `end_position` is the end of the active file."""
    states = ProducerStates()
    if saved := _read(folder):
        states.take(saved[1], end_offset)
        _read_batches(states, folder, files, min(saved[0], end_offset), end_offset, end_position)
    return states


def recover(folder: Path, files: Sequence[WalFile], *, end_offset: int, end_position: int) -> None:
    """Save the state as the WAL has it, after an unclean end."""
    if exists(folder):
        states = load(folder, files, end_offset=end_offset, end_position=end_position)
        # Even if no producer is left: a batch that was cut off must not be mistaken for one that gets its offsets now.
        states.save(folder, end_offset)


def _read_batches(
    states: ProducerStates,
    folder: Path,
    files: Iterable[WalFile],
    offset: int,
    end_offset: int,
    end_position: int,
) -> None:
    own = list(files)
    ends = [*(file.first_offset for file in own[1:]), end_offset]
    for file, file_end in zip(own, ends, strict=True):
        if file_end > offset:
            size_bytes = end_position if file.size_bytes is None else file.size_bytes
            for header in _headers(folder / file.name, size_bytes):
                if header.producer_id >= 0 and header.base_offset >= offset:
                    # Records may have any timestamp, but the producer was active after the file was created.
                    seen_ms = max(header.max_timestamp_ms, file.opened_ms)
                    states.appended(header, header.base_offset, seen_ms)


def _headers(path: Path, size_bytes: int) -> Iterator[BatchHeader]:
    """Yield the headers of the batches, as far as the file can be read. Full reads report damage."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        position = 0
        while position < size_bytes:
            header = batch.read_header(os.pread(fd, batch.HEADER_BYTES, position))
            if header is None:
                return
            yield header
            position += header.size_bytes
    except batch.BadBatchError:
        return
    finally:
        os.close(fd)


def _read(folder: Path) -> tuple[int, list[list[object]]] | None:
    try:
        return state_file.load(
            folder / PRODUCERS_FILE,
            lambda saved: (int(saved["offset"]), saved["producers"]),
            "Everything left in the WAL is read instead.",
        )
    except CorruptError as error:
        logger.warning("%s", error)
        return 0, []


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % SEQUENCES


def _to_list(sent: SentBatch) -> list[int]:
    return [
        sent.first_sequence,
        sent.last_sequence,
        sent.first_offset,
        sent.last_offset,
        sent.timestamp_ms,
    ]
