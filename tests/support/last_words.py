"""The model of the kill tests of compaction: what was acknowledged, and so what must be there, may be, and must not."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.compaction_child import LASTING, PARTITIONS, TOPICS, make_value, name_of
from tests.support.crash import Line

import lastword
from lastword.batch.partitioner import partition_of
from lastword.folder.intents import list_intents, load_intent


@dataclass(frozen=True)
class Word:
    """A record that was appended. Its value follows from its name."""

    offset: int
    name: str
    key: str

    @property
    def is_tombstone(self) -> bool:
        return make_value(self.name) is None


@dataclass
class TopicWords:
    """What is known of a topic."""

    by_offset: list[dict[int, Word]] = field(default_factory=lambda: [{} for _ in range(PARTITIONS)])
    last: dict[str, Word] = field(default_factory=dict)
    gone: list[set[int]] = field(default_factory=lambda: [set() for _ in range(PARTITIONS)])
    positions: list[list[int]] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    """Keys whose last append, a tombstone, was never acknowledged, and seems to have been made and removed."""
    ever_deleted: set[str] = field(default_factory=set)
    erase_asked: set[str] = field(default_factory=set)
    erased: set[str] = field(default_factory=set)

    def learn(self, partition: int, word: Word) -> None:
        known = self.by_offset[partition].setdefault(word.offset, word)
        assert known == word, f"partition {partition}: {known} and {word} have the same offset"
        if word.key not in self.last or self.last[word.key].offset <= word.offset:
            self.last[word.key] = word
            self.deleted.discard(word.key)


@dataclass(frozen=True)
class Pending:
    """An append without an answer: names and keys."""

    topic: str
    words: list[tuple[str, str]]


class LastWords:
    """What all children so far have said; `check` compares a log, that nobody writes just then, with it."""

    def __init__(self) -> None:
        self.topics = {name: TopicWords() for name in TOPICS}
        self.pending: list[Pending] = []
        self.appended = self.erasures = self.checks = 0

    # ----------------------------------------------------------------------------------------- learning

    def learn(self, lines: Iterable[Line]) -> None:
        """What one child said in its life."""
        asked: Pending | None = None
        for mark, what, details in lines:
            if what == "append" and mark == "?":
                asked = Pending(details["topic"], list(zip(details["names"], details["keys"], strict=True)))
            elif what == "append":
                assert asked is not None
                for (name, key), (partition, offset) in zip(asked.words, details["at"], strict=True):
                    self.topics[asked.topic].learn(partition, Word(offset, name, key))
                self.appended += len(asked.words)
                asked = None
            elif what == "erase" and mark == "?":
                self.topics[details["topic"]].erase_asked.update(details["keys"])
            elif what == "erase":
                self.topics[details["topic"]].erased.update(details["keys"])
                self.erasures += 1
        if asked is not None:
            self.pending.append(asked)

    # ----------------------------------------------------------------------------------------- checking

    def check(self, log: lastword.Log) -> None:
        self.checks += 1
        intents = [each for path in list_intents(log.path) if (each := load_intent(path)) is not None]
        for intent in intents:
            # It is noted, so it will be carried out, whoever asked for it.
            self.topics[intent.topic].erased.update(key.decode() for key in intent.keys)
        noted = {intent.topic for intent in intents}
        for name, known in self.topics.items():
            topic = log.topic(name)
            state = {
                row["key"].decode(): row
                for row in topic.state().select(["key", "offset", "value"]).to_pylist()
            }
            records = [list(topic.read(partition=partition)) for partition in range(PARTITIONS)]
            self._resolve(name, known, records, state)
            self._check_positions(topic, known)
            for partition, found in enumerate(records):
                self._check_partition(topic, known, partition, found)
            self._check_state(name, known, state, records, erasing=name in noted)
        self.pending.clear()

    def _resolve(
        self,
        name: str,
        known: TopicWords,
        records: list[list[lastword.Record]],
        state: dict[str, dict[str, object]],
    ) -> None:
        """An append without an answer was made in a partition or not, but never in part."""
        for pending in [each for each in self.pending if each.topic == name]:
            for partition in range(PARTITIONS):
                own = [
                    (word, key)
                    for word, key in pending.words
                    if partition_of(key.encode(), PARTITIONS) == partition
                ]
                found = {name_of(record): record for record in records[partition]}
                there = [word for word, _ in own if word in found]
                for word, key in own:
                    if word in found:
                        known.learn(partition, Word(found[word].offset, word, key))
                    elif make_value(word) is None and (there or key not in state):
                        # Nobody can tell a tombstone that is gone from one that never was, but by what it did.
                        known.deleted.add(key)
                        known.ever_deleted.add(key)
                    else:
                        assert not there, (
                            f"{name}/{partition}: {there} is there and {word} of its append is not"
                        )

    def _check_positions(self, topic: lastword.Topic, known: TopicWords) -> None:
        described = topic.describe().partitions
        positions = [[p.log_start, p.first_dirty, p.sealed_end, p.log_end] for p in described]
        for before, now in zip(known.positions, positions, strict=False):
            assert all(new >= old for new, old in zip(now, before, strict=True)), (
                f"{topic.name}: a position went back: {before} -> {now}"
            )
        assert all(each.problem is None and each.log_start == 0 for each in described), described
        known.positions = positions

    def _check_partition(
        self, topic: lastword.Topic, known: TopicWords, partition: int, records: list[lastword.Record]
    ) -> None:
        where = f"{topic.name}/{partition}"
        offsets = [record.offset for record in records]
        names = [name_of(record) for record in records]
        log_end = known.positions[partition][3]
        assert offsets == sorted(set(offsets)), f"{where}: out of order or twice"
        assert len(set(names)) == len(names), f"{where}: a record is there twice"
        assert all(offset < log_end for offset in known.by_offset[partition]), (
            f"{where}: acknowledged and cut"
        )
        back = known.gone[partition] & set(offsets)
        assert not back, f"{where}: {sorted(back)[:5]} had been compacted away and came back"
        known.gone[partition] |= set(range(log_end)) - set(offsets)
        for record, name in zip(records, names, strict=True):
            word = known.by_offset[partition].get(record.offset)
            assert word is not None, f"{where}: nobody appended {name} at {record.offset}"
            assert (word.name, word.key) == (name, (record.key or b"").decode()), (
                f"{where}: {record} is not {word}"
            )
            assert record.value == make_value(name), f"{where}: {record} is damaged"

    def _check_state(
        self,
        name: str,
        known: TopicWords,
        state: dict[str, dict[str, object]],
        records: list[list[lastword.Record]],
        *,
        erasing: bool,
    ) -> None:
        there = {(record.partition, record.offset) for own in records for record in own}
        assert set(state) <= set(known.last), f"{name}: keys that nobody appended"
        for key, word in known.last.items():
            is_there = (partition_of(key.encode(), PARTITIONS), word.offset) in there
            if key in known.erase_asked and key not in state:
                known.erased.add(key)
            elif key in known.erased and not erasing:
                assert key not in state and not is_there, f"{name}: {key} was erased and is there"
            elif word.is_tombstone or key in known.deleted:
                assert key not in state, f"{name}: {key} was deleted and is there as {state[key]}"
            else:
                assert key in state, f"{name}: the last word on {key}, {word}, is lost"
                assert is_there, f"{name}: {word} is in the state and in no replay"
                shown = (state[key]["offset"], state[key]["value"])
                assert shown == (word.offset, make_value(word.name)), f"{name}: {key} is {shown}, not {word}"

    # ---------------------------------------------------------------------------------- what a reader saw

    def check_reader(self, lines: Iterable[Line]) -> int:
        """Every replay beside all that showed every last word of its time; how many replays there were."""
        replays = 0
        by_key: dict[tuple[str, int], dict[str, list[Word]]] = {}
        for name, known in self.topics.items():
            for partition, words in enumerate(known.by_offset):
                own = by_key.setdefault((name, partition), {})
                for _, word in sorted(words.items()):
                    own.setdefault(word.key, []).append(word)
        for _, what, details in lines:
            if what == "replay":
                replays += 1
                name = details["topic"]
                replayed = zip(details["ends"], details["ends_after"], details["seen"], strict=True)
                for partition, (end, end_after, seen) in enumerate(replayed):
                    self._check_replay(name, by_key[name, partition], end, end_after, seen)
            elif what == "followed":
                self._check_followed(details["topics"][LASTING])
        return replays

    def _check_replay(
        self, name: str, words_by_key: dict[str, list[Word]], end: int, end_after: int, spans: list[int]
    ) -> None:
        known = self.topics[name]
        seen = {
            offset
            for first, last in zip(spans[::2], spans[1::2], strict=True)
            for offset in range(first, last + 1)
        }
        for key, words in words_by_key.items():
            offsets = [word.offset for word in words]
            at = bisect_left(offsets, end)
            if at == 0 or words[at - 1].is_tombstone or key in known.erase_asked or key in known.ever_deleted:
                continue
            # What beats it may have come while the replay went on; if it was a tombstone, it may be gone too.
            newer = words[at : bisect_left(offsets, end_after)]
            shown = any(word.offset in seen for word in [words[at - 1], *newer])
            assert shown or (name != LASTING and any(word.is_tombstone for word in newer)), (
                f"{name}: a replay up to {end} does not show {words[at - 1]}"
            )

    def _check_followed(self, followed: dict[str, str]) -> None:
        known = self.topics[LASTING]
        for key, word in known.last.items():
            if key not in known.erase_asked and key not in known.deleted:
                assert followed.get(key) == word.name, f"a follower has {followed.get(key)} and not {word}"

    # --------------------------------------------------------------------------------------- what is erased

    def check_erased(self, folder: Path) -> int:
        """No file of the log has an erased key, as it is or inside of a segment; how many keys that is."""
        keys = {key.encode(): name for name, known in self.topics.items() for key in sorted(known.erased)}
        for path in [each for each in folder.rglob("*") if each.is_file()]:
            content = path.read_bytes()
            if path.suffix == ".parquet":
                found = _keys_of(path)
                for key, name in keys.items():
                    assert key not in found or not _is_of(path, name), f"{path} has the erased key {key!r}"
            for key, name in keys.items():
                assert key not in content or not _is_of(path, name), f"{path} has the bytes of {key!r}"
        return len(keys)


def _keys_of(path: Path) -> set[bytes | None]:
    """The keys in a segment; none in one that a killed process was still writing."""
    try:
        return set(pq.read_table(path, columns=["key"], partitioning=None).column("key").to_pylist())
    except pa.ArrowInvalid:
        return set()


def _is_of(path: Path, topic: str) -> bool:
    """The same key may live on in another topic."""
    other = [each for each in TOPICS if each != topic]
    return not any(part == each or part.startswith(f"{each}-") for each in other for part in path.parts)
