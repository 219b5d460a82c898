"""Committed offsets of groups: `group-offsets`.

Legality: a read returns an offset whose commit may be the last one. A commit is a candidate if it was invoked before the
read completed, unless an acknowledged commit began after it had completed and completed before the read was invoked. A
commit in doubt may take effect later: only a restart ends the doubt. A read may return no offset until a commit has been
acknowledged before it.

A topic's next life begins without commits. After a takeover, or a crash that may lose the end of the log, earlier commits
are legal too. After a restore, so are no commit at all and the commits that may have been the last one during the backup.
"""

from __future__ import annotations

from collections import defaultdict

from lastword.testing.history.events import OffsetCommit, OffsetRead, Outcome, Restore
from lastword.testing.history.findings import Findings
from lastword.testing.history.rules.rule import Rule
from lastword.testing.history.truth.clockline import NEVER
from lastword.testing.history.truth.lives import Life
from lastword.testing.history.truth.reading import TopicTruth, Truth

RULES = (
    Rule("group-offsets", "A group reads the offset that it committed last."),
    Rule("next-life", "A topic that is deleted and created again shows nothing of its earlier life."),
)

_Key = tuple[str, int]


def check(truth: Truth, findings: Findings) -> None:
    for topic in truth.topics.values():
        for key, reads in _by_group(topic.offset_reads).items():
            commits = [
                each
                for each in topic.commits
                if (each.group, each.partition) == key and each.outcome is not Outcome.REFUSED
            ]
            _Group(topic, truth, commits, findings).check(reads)


def _by_group(reads: list[OffsetRead]) -> dict[_Key, list[OffsetRead]]:
    found: dict[_Key, list[OffsetRead]] = defaultdict(list)
    for each in reads:
        if each.outcome is Outcome.OK:
            found[(each.group, each.partition)].append(each)
    return found


class _Group:
    """The commits of one group to one partition."""

    def __init__(
        self, topic: TopicTruth, truth: Truth, commits: list[OffsetCommit], findings: Findings
    ) -> None:
        self._topic = topic
        self._findings = findings
        self._commits = [(each, truth.clock.effect_until(each)) for each in commits]

    def check(self, reads: list[OffsetRead]) -> None:
        for read in reads:
            completed = NEVER if read.completed is None else read.completed
            life = self._topic.lives.only(read.invoked, completed)
            if life is None or life.is_blind:
                continue
            self._findings.checked("group-offsets")
            if life.root.number > 0:
                self._findings.checked("next-life")
            offsets, may_be_none = self._legal(life, read.invoked, completed)
            if (read.offset is None and may_be_none) or read.offset in offsets:
                continue
            self._report(read, life)

    def _legal(self, life: Life, since: int, until: int) -> tuple[set[int], bool]:
        """Return the offsets that a read may return, and whether it may return no offset."""
        own = [
            (commit, end)
            for commit, end in self._commits
            if commit.invoked <= until and life.may_be_at(commit.invoked, end)
        ]
        sure = [
            commit
            for commit, end in own
            if commit.outcome is Outcome.OK
            and end < since
            and self._topic.lives.only(commit.invoked, end) is life
        ]
        last = max((each.invoked for each in sure), default=-1)
        offsets = {commit.offset for commit, end in own if end >= last}
        if sure:
            # A deletion in doubt or in progress may already have ended the life.
            return offsets, until >= life.dead_from
        if life.parent is None:
            return offsets, True
        cause = life.cause
        if isinstance(cause, Restore):
            earlier, _ = self._legal(life.parent, cause.backup_invoked, cause.backup_completed)
            return offsets | earlier, True
        family = life.family
        earlier = {
            commit.offset
            for commit, end in self._commits
            if any(each.may_be_at(commit.invoked, end) for each in family)
        }
        return offsets | earlier, True

    def _report(self, read: OffsetRead, life: Life) -> None:
        before = [each for each, _ in self._commits if each.invoked < read.invoked]
        same = next((each for each in reversed(before) if each.offset == read.offset), None)
        is_old = same is not None and not any(
            each.may_be_at(same.invoked, NEVER if same.completed is None else same.completed)
            for each in life.family
        )
        last = before[-1] if before else None
        self._findings.anomaly(
            "next-life" if is_old else "group-offsets",
            f"Group {read.group} read the offset {read.offset} of {read.topic}/{read.partition}, which "
            f"{'was committed in an earlier life of the topic' if is_old else 'is not its last commit'}.",
            [
                (same, ""),
                (life.created, "which began a new life") if is_old else (last, ""),
                (read, f"and got {read.offset}"),
            ],
            topic=read.topic,
            partition=read.partition,
            offset=read.offset,
        )
