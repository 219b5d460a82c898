"""Pages of a topic's state, by key, in bounded memory however large the state is.

The steps of a page:
1. find the winner of each key, from keys and versions alone, and from whether there is a value;
2. count the keys that are left, and take those that follow the last page, in byte order;
3. pick their records.

If the winners of all keys don't fit into MOST_BYTES, it starts over with only the keys that match the search. If these
don't fit either, it starts over with only the first keys after the last page. Then nothing is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.strategy import Strategy, best_of_each_key, strategy_of
from lastword.log.topic import Topic
from lastword.operations.picking import Source, Taken, pick, with_views
from lastword.reading import timetravel
from lastword.reading.reader import PartitionReader
from lastword.reading.timetravel import AsOf, View
from lastword.record import Record
from lastword.segments.rows import clip, to_records

MOST_BYTES = 16 << 20
"""The maximum bytes of keys and versions that compete at once. There are a few copies of them in memory."""
MERGE_BYTES = 2 << 20
FIRST_KEYS = 20_000
"""If the keys can't all compete at once, this many do, or the page's limit if that is higher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePage:
    """Some records of a state, by key. A count is None if there were too many keys to count."""

    keys: int | None
    matching: int | None
    records: tuple[Record, ...]
    next: bytes | None
    """The key to continue after, if there are more."""


class _TooManyError(Exception):
    """The keys don't fit. It never reaches a user, because the page is retried with fewer keys."""


def state_page(
    topic: Topic,
    *,
    as_of: AsOf | None = None,
    search: bytes | None = None,
    after: bytes | None = None,
    limit: int,
    max_bytes: int,
) -> StatePage:
    """Return the records of the first keys after `after`, of all keys or of those that contain `search`.

    The page ends with the record that passes `max_bytes` of keys and values.
    """
    return with_views(
        topic, as_of, _Question(strategy_of(topic.settings), search, after, limit, max_bytes).answer
    )


@dataclass(frozen=True, slots=True)
class _Question:
    strategy: Strategy
    search: bytes | None
    after: bytes | None
    limit: int
    max_bytes: int

    def answer(self, sources: Sequence[Source]) -> StatePage:
        try:
            state = self._compete(sources)
            found = self._matching(state)
            return self._page(sources, _behind(found, self.after), keys=len(state), matching=len(found))
        except _TooManyError:
            pass
        if self.search is not None:
            try:
                found = self._compete(sources, self._matching)
                return self._page(sources, _behind(found, self.after), keys=None, matching=len(found))
            except _TooManyError:
                pass
        return self._first(sources)

    def _first(self, sources: Sequence[Source]) -> StatePage:
        """Make the page from the first keys alone or, if these have been deleted, from those after them."""
        after = self.after
        while True:
            cut = _Cut(max(FIRST_KEYS, self.limit))
            found = self._compete(sources, partial(self._matching_behind, after), cut)
            if len(found) >= self.limit or cut.at is None:
                return self._page(sources, found, keys=None, matching=None, more=cut.at is not None)
            if len(found):
                # A page may have fewer than the limit. The next one begins after the keys seen so far.
                return self._page(sources, found, keys=None, matching=None, more=True, end=cut.at)
            after = cut.at

    def _compete(
        self,
        sources: Sequence[Source],
        keep: Callable[[pa.Table], pa.Table] = lambda rows: rows,
        cut: _Cut | None = None,
    ) -> pa.Table:
        """Return the partition, offset and key of each key that is left, in no order."""
        held_bytes = 0

        def narrow(best: pa.Table) -> pa.Table:
            if cut is not None:
                return cut.narrow(best)
            if held_bytes + best.nbytes > MOST_BYTES:
                raise _TooManyError
            return best

        winners: list[pa.Table] = []
        for reader, view in sources:
            rows = map(keep, self._scan(reader, view, len(sources) > 1))
            best = _contest(rows, self.strategy, narrow)
            if best is not None:
                partition = pa.repeat(pa.scalar(reader.partition, pa.int32()), len(best))
                winners.append(best.append_column("partition", partition))
                held_bytes += winners[-1].nbytes
        if not winners:
            return pa.table(
                {
                    "partition": pa.array([], pa.int32()),
                    "offset": pa.array([], pa.int64()),
                    "key": pa.array([], pa.binary()),
                }
            )
        every = pa.concat_tables(winners)
        if len(sources) > 1:
            every = _once_each(every)
        if cut is not None and cut.at is not None:
            # For keys after the cut, one partition may have dropped rows that another one still has.
            every = every.filter(pc.less_equal(every.column("key"), pa.scalar(cut.at, pa.binary())))
        return every.filter(every.column("is_live")).select(["partition", "offset", "key"])

    def _scan(self, reader: PartitionReader, view: View, with_time: bool) -> Iterator[pa.Table]:
        columns = ["offset", "key", *self.strategy.columns]
        if with_time and "timestamp" not in columns:
            columns.append("timestamp")
        for segment in timetravel.sealed_segments(reader, view):
            if segment.null_values:
                batches = reader.table.files.stream(segment, [*columns, "value"])
            else:
                batches = reader.table.read(segment, columns, view.start)
            for records in batches:
                yield _lean(_from(clip(records, view.sealed_to), view.start), columns)
        for records in timetravel.read_tail(reader, view):
            yield _lean(records, columns)

    def _matching(self, rows: pa.Table) -> pa.Table:
        if not self.search:
            return rows
        return rows.filter(pc.match_substring(rows.column("key").cast(pa.large_binary()), self.search))

    def _matching_behind(self, after: bytes | None, rows: pa.Table) -> pa.Table:
        return _behind(self._matching(rows), after)

    def _page(
        self,
        sources: Sequence[Source],
        found: pa.Table,
        *,
        keys: int | None,
        matching: int | None,
        more: bool = False,
        end: bytes | None = None,
    ) -> StatePage:
        chosen = found.take(pc.select_k_unstable(found, self.limit, sort_keys=[("key", "ascending")]))
        more = more or len(chosen) < len(found)
        taken = Taken[bytes](self.max_bytes)
        for reader, view in sources:
            own = chosen.filter(pc.equal(chosen.column("partition"), reader.partition))
            for batch in pick(reader, view, np.sort(own.column("offset").to_numpy())):
                for record in to_records(batch):
                    assert record.key is not None
                    taken.add(record.key, record)
        records = taken.in_order()
        if len(records) < len(chosen):
            more, end = True, None
        following = None if not more else end if end is not None else records[-1].key if records else None
        return StatePage(keys=keys, matching=matching, records=records, next=following)


class _Cut:
    """Keeps only the first keys of each partition. `at` is the last key up to which nothing is missing."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.at: bytes | None = None

    def narrow(self, best: pa.Table) -> pa.Table:
        if len(best) <= self._most:
            return best
        order = pc.sort_indices(best.column("key"))
        last = best.column("key")[order[self._most - 1].as_py()].as_py()
        self.at = last if self.at is None else min(self.at, last)
        return best.filter(pc.less_equal(best.column("key"), pa.scalar(last, pa.binary())))


def _behind(rows: pa.Table, after: bytes | None) -> pa.Table:
    return (
        rows if after is None else rows.filter(pc.greater(rows.column("key"), pa.scalar(after, pa.binary())))
    )


def _from(records: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    return records.slice(int(np.searchsorted(records.column("offset").to_numpy(), offset)))


def _lean(records: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
    """Return the columns that compete, and whether there is a value."""
    rows = pa.Table.from_batches([records])
    has_value = (
        rows.column("value").is_valid() if "value" in rows.column_names else pa.repeat(True, len(rows))
    )
    return rows.select(list(columns)).append_column("is_live", has_value)


def _contest(
    rows: Iterable[pa.Table | pa.RecordBatch],
    strategy: Strategy,
    narrow: Callable[[pa.Table], pa.Table],
) -> pa.Table | None:
    """Return the best row of each key, or None if there is no row with a key.

    Rows are of one partition, in offset order, with keys, offsets and the columns that the strategy compares. They
    compete in batches, so that only the best ones are held. `narrow` may then remove keys for good.
    """
    best: pa.Table | None = None
    waiting: list[pa.Table] = []
    waiting_bytes = best_bytes = 0
    for each in rows:
        keyed = each if isinstance(each, pa.Table) else pa.Table.from_batches([each])
        if each.column("key").null_count:
            keyed = keyed.filter(each.column("key").is_valid())
        waiting.append(keyed)
        waiting_bytes += keyed.nbytes
        if waiting_bytes >= max(MERGE_BYTES, best_bytes):
            best = narrow(_best(best, waiting, strategy))
            waiting, waiting_bytes, best_bytes = [], 0, best.nbytes
    if waiting:
        best = narrow(_best(best, waiting, strategy))
    return best


def _best(best: pa.Table | None, waiting: Sequence[pa.Table], strategy: Strategy) -> pa.Table:
    rows = pa.concat_tables(waiting if best is None else [best, *waiting])
    return rows.filter(pa.array(strategy.winners(rows)))


def _once_each(winners: pa.Table) -> pa.Table:
    """Keep one row of each key, of the winners of several partitions.

    After an increase of partitions a key may be in two. The later timestamp wins, then the higher partition.
    """
    timestamps = winners.column("timestamp").cast(pa.int64()).fill_null(-1).to_numpy()
    order = np.lexsort((winners.column("partition").to_numpy(), timestamps))
    return winners.filter(pa.array(best_of_each_key(winners.column("key"), order)))
