"""The lives of a topic: periods in which its log only grows.

A life begins when the topic is created. It ends when the topic is deleted, and when the log may have been cut: by a crash
that may lose the end of the log, a takeover or a restore. A life that follows a cut has a parent, and begins with a part
of its parent's log.

An operation belongs to each life that may have existed between its invocation and its completion. Rules check an
operation against a life only if it can belong to no other life.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lastword.testing.history.events import (
    Operation,
    Outcome,
    Restart,
    RestartKind,
    Restore,
    Takeover,
    TopicCreated,
    TopicDeleted,
    TopicSettings,
)
from lastword.testing.history.options import Options
from lastword.testing.history.truth.clockline import NEVER
from lastword.testing.history.truth.settings import Window, windows_of

if TYPE_CHECKING:
    from lastword.testing.history.truth.partition import PartitionLog

Cause = Restart | Restore | Takeover


@dataclass(slots=True, eq=False)
class Life:
    """A life of a topic. It may exist from `born_from` on, but not after `dead_by`."""

    topic: str
    number: int
    born_from: int
    dead_from: int = NEVER
    dead_by: int = NEVER
    created: TopicCreated | None = None
    parent: Life | None = None
    cause: Cause | None = None
    is_blind: bool = False
    """Whether nothing is known about its content."""
    windows: list[Window] = field(default_factory=list)
    initial: list[Mapping[str, str]] = field(default_factory=list)
    """The possible settings at the beginning of the life, or of its first ancestor with the same settings."""
    settings_from: int = -1
    partitions: dict[int, PartitionLog] = field(default_factory=dict)

    def may_be_at(self, since: int, until: int) -> bool:
        return self.born_from <= until and since <= self.dead_by

    @property
    def family(self) -> list[Life]:
        """Return the life and its ancestors."""
        found = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent)
        return found

    @property
    def root(self) -> Life:
        return self.family[-1]


@dataclass(frozen=True, slots=True)
class Lives:
    """The lives of one topic, in order."""

    lives: tuple[Life, ...]
    are_blurred: bool = False
    """Whether a deletion and a creation were concurrent, so that the life that an operation saw is unknown."""

    def possible(self, since: int, until: int) -> list[Life]:
        """Return the lives that an operation between two numbers may belong to."""
        return [each for each in self.lives if each.born_from <= until and since <= each.dead_by]

    def only(self, since: int, until: int) -> Life | None:
        """Return the life that an operation belongs to, if only one is possible."""
        if self.are_blurred:
            return None
        found: Life | None = None
        for each in self.lives:
            if each.born_from <= until and since <= each.dead_by:
                if found is not None:
                    return None
                found = each
        return found


def lives_of(
    topic: str,
    operations: Sequence[Operation],
    causes: Sequence[Cause],
    options: Options,
) -> Lives:
    """Return the lives of a topic. `operations` are the topic's; `causes` are those that may cut its log."""
    creations = [
        each for each in operations if isinstance(each, TopicCreated) and each.outcome is not Outcome.REFUSED
    ]
    deletions = [
        each for each in operations if isinstance(each, TopicDeleted) and each.outcome is not Outcome.REFUSED
    ]
    changes = [each for each in operations if isinstance(each, TopicSettings)]
    lives: list[Life] = []
    if not creations or _is_used_before(operations, creations[0]):
        lives.append(_with_settings(Life(topic, 0, -1), {}, changes, options))
    for event in sorted([*creations, *deletions, *causes], key=lambda each: each.invoked):
        current = lives[-1] if lives else None
        if isinstance(event, TopicDeleted):
            if current is not None:
                _end(current, event)
        elif isinstance(event, TopicCreated):
            if current is not None and current.dead_from == NEVER:
                # The topic existed already, or an earlier creation in doubt had no effect.
                continue
            if current is not None and event.outcome is Outcome.OK:
                current.dead_by = min(current.dead_by, _completed(event))
            born = Life(topic, len(lives), event.invoked, created=event)
            lives.append(_with_settings(born, event.settings, changes, options))
        elif current is not None and event.outcome is not Outcome.REFUSED:
            _cut(lives, event, changes, options)
    blurred = any(
        creation.invoked < deletion.invoked < _completed(creation) and creation.outcome is Outcome.OK
        for creation in creations
        for deletion in deletions
    )
    return Lives(tuple(lives), blurred)


def _is_used_before(operations: Iterable[Operation], creation: TopicCreated) -> bool:
    """Return whether an operation on a topic succeeded before its first known creation."""
    for each in operations:
        if each.invoked >= creation.invoked:
            return False
        if each.outcome is Outcome.OK and each.completed is not None and each.completed < creation.invoked:
            return True
    return False


def _cut(lives: list[Life], cause: Cause, changes: Sequence[TopicSettings], options: Options) -> None:
    current = lives[-1]
    if isinstance(cause, Restart):
        losing = any(each.rules.may_lose_tail and each.until >= cause.invoked for each in current.windows)
        if cause.kind is RestartKind.CLEAN or not losing:
            return
        parents = [current]
    elif isinstance(cause, Takeover):
        if not options.takeover_loses_unsealed:
            return
        parents = [current]
    else:
        parents = [each for each in lives if each.may_be_at(cause.backup_invoked, cause.backup_completed)]
    may_be_dead = current.dead_from < NEVER and not isinstance(cause, Restore)
    if may_be_dead and current.dead_by < cause.invoked:
        return
    _end(current, cause)
    if not parents:
        return
    parent = parents[0] if len(parents) == 1 else None
    child = Life(
        current.topic, len(lives), cause.invoked, parent=parent, cause=cause, is_blind=parent is None
    )
    if may_be_dead:
        child.dead_from = cause.invoked
    if parent is None or parent.is_blind:
        child.is_blind = True
    lives.append(child)
    if isinstance(cause, Restore):
        child.settings_from = cause.invoked
        child.initial = [
            settings
            for life in parents
            for until in (cause.backup_invoked, cause.backup_completed)
            for settings in _settings(life, until, changes, options)[1]
        ]
        child.windows = _settings(child, NEVER, changes, options)[0]
    else:
        child.settings_from, child.initial = current.settings_from, current.initial
        child.windows = current.windows


def _with_settings(
    life: Life,
    initial: Mapping[str, str],
    changes: Sequence[TopicSettings],
    options: Options,
) -> Life:
    """Note the settings that may be in force in a life. Changes after its end are harmless."""
    life.initial, life.settings_from = [initial], life.born_from
    life.windows = _settings(life, NEVER, changes, options)[0]
    return life


def _settings(
    life: Life, until: int, changes: Sequence[TopicSettings], options: Options
) -> tuple[list[Window], list[Mapping[str, str]]]:
    own = [each for each in changes if life.settings_from <= _completed(each) and each.invoked <= until]
    return windows_of(life.settings_from, life.initial, options.settings, own)


def _end(life: Life, event: Operation) -> None:
    life.dead_from = min(life.dead_from, event.invoked)
    if event.outcome is Outcome.OK:
        life.dead_by = min(life.dead_by, _completed(event))


def _completed(operation: Operation) -> int:
    return NEVER if operation.completed is None else operation.completed
