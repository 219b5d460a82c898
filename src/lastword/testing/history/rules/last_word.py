"""The state of a topic: `last-word`, `full-read`, `fixed-past`.

A state is the fold of a log: for each key, the value of the record that wins by the strategy, unless it is a tombstone.
Three reads return states: a read of the state, a pass of one session from the log start to the high watermark, and a read
as of a point.

Legality: a state is legal if it is the fold of each partition at some log end. This end is at least the log end known
before the read was invoked, and at most the log end possible when it completed. Each key allows some ends, and one end
must satisfy all keys. A pass is compared at the high watermark of its last fetch. A point with offsets is such an end, if
the log end had passed it. A point in time is the end before the first younger record, if that record was acknowledged and
no record that may come before it could be younger.

A key may also have no value if age, log start or erasure may have removed its winner. It may have the value of a record
that may be in the log at an unknown offset. Under `timestamp`, `header` and `first`, any value of a key is legal once its
winner may be removed, because an older record may have been appended afterwards. For a key in several partitions, one of
them must have the value. If the strategy was changed, nothing is checked.

`full-read` finds ghosts: a pass that saw a key's value, but not the tombstone after it. The tombstone was needed when the
pass began, so it has to stay for delete.retention.ms from then on. A pass that took longer, by the server's clock, may
return ghosts. The rule applies only to the strategy `offset` with tombstone.clock=compaction.
"""

from __future__ import annotations

from collections import defaultdict

from lastword.testing.history.events import StateRead
from lastword.testing.history.findings import Findings
from lastword.testing.history.rules.fold import Fold
from lastword.testing.history.rules.rule import Rule
from lastword.testing.history.rules.shown import Homes, Shown, deal, of_travel, passes
from lastword.testing.history.truth.clockline import NEVER
from lastword.testing.history.truth.lives import Life
from lastword.testing.history.truth.partition import PartitionLog
from lastword.testing.history.truth.reading import Truth
from lastword.testing.history.truth.settings import Strategy
from lastword.testing.history.words import record_text, text_of

RULES = (
    Rule("last-word", "The state holds the newest record of each key, as of one moment in each partition."),
    Rule("full-read", "A reader that reads everything within delete.retention.ms sees no deleted key."),
    Rule("fixed-past", "A read as of a past point always returns the state at that point."),
)


def check(truth: Truth, findings: Findings) -> None:
    homes: dict[int, Homes] = {}
    shown: dict[PartitionLog, list[Shown]] = defaultdict(list)
    for log in truth.logs():
        shown[log] += passes(log)
        for travel in log.travels:
            found = of_travel(log, travel)
            if found is not None:
                shown[log].append(found)
    for topic in truth.topics.values():
        for read in topic.states:
            completed = NEVER if read.completed is None else read.completed
            life = topic.lives.only(read.invoked, completed)
            if life is None or life.is_blind or read.state is None:
                continue
            if id(life) not in homes:
                homes[id(life)] = Homes(life)
            deal(read, life, homes[id(life)], shown, truth, findings)
    for log, states in shown.items():
        home = homes.get(id(log.life))
        Fold(log, truth, findings, home.shared if home is not None else set()).check(states)
    _check_agreement(truth, findings)


def _check_agreement(truth: Truth, findings: Findings) -> None:
    """Check that reads as of one point agree, even where records in doubt make the fold ambiguous."""
    for topic in truth.topics.values():
        first: dict[tuple[int, object, object], StateRead] = {}
        for read in topic.states:
            if read.as_of is None or read.as_of.offsets is None or read.state is None:
                continue
            completed = NEVER if read.completed is None else read.completed
            life = topic.lives.only(read.invoked, completed)
            if life is None or life.is_blind or not _is_fixed(life, read):
                continue
            point = tuple(sorted(read.as_of.offsets.items()))
            before = first.setdefault((life.number, point, read.partitions), read)
            findings.checked("fixed-past")
            if before is read or before.state is None:
                continue
            for key in before.state.keys() | read.state.keys():
                one, two = before.state.get(key), read.state.get(key)
                if one == two or _may_differ(life, key, completed):
                    continue
                findings.anomaly(
                    "fixed-past",
                    f"Two reads of {topic.name} as of the same point disagree about {text_of(key)}.",
                    [
                        (before, f"and saw {record_text(key, one) if one is not None else 'no value'}"),
                        (read, f"and saw {record_text(key, two) if two is not None else 'no value'}"),
                    ],
                    topic=topic.name,
                    key=key,
                )


def _is_fixed(life: Life, read: StateRead) -> bool:
    """Return whether the log ends had passed a point before it was read."""
    assert read.as_of is not None and read.as_of.offsets is not None
    return all(
        number in life.partitions and offset < life.partitions[number].end_known_before(read.invoked)
        for number, offset in read.as_of.offsets.items()
    )


def _may_differ(life: Life, key: bytes, completed: int) -> bool:
    """Return whether a record of a key may be removed other than by compaction, which may change its past."""
    for log in life.partitions.values():
        if log.strategy_at(completed) is None:
            return True
        found = [*log.by_key.get(key, ()), *log.doubts.get(key, ())]
        found += [each for each in log.maybes.values() if each.key == key]
        if any(each.taken_from <= completed for each in found):
            return True
        if any(each.expired_from <= completed for each in found) and log.strategy_at(completed) != Strategy():
            return True
    return False
