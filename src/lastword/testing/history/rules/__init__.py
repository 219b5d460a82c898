"""The promises of a log. `RULES` lists all rules with their promises.

Each file checks a group of rules, and its docstring defines what is legal and why. Where a history does not allow a
decision, a rule reports nothing.

rule.py        a rule's name and promise
visible.py     the records that a fetch must return: durable, gaps, tombstones
last_word.py   states, present and past: last-word, full-read, fixed-past
shown.py       the states that reads returned, and the log ends that they may belong to
fold.py        the true fold of a log, compared with the states that reads returned
no_return.py   removed records never return
erased.py      erased records are not read
positions.py   positions never move back
groups.py      committed offsets of groups
skips.py       positions in a list, with skipped ones
"""

from collections.abc import Callable

from lastword.testing.history.findings import Findings
from lastword.testing.history.rules import erased, groups, last_word, no_return, positions, visible
from lastword.testing.history.rules.rule import Rule
from lastword.testing.history.truth.reading import Truth

READ_RULES = (
    Rule("refused", "Records that were refused or never sent are never returned."),
    Rule("immutable", "An offset shows the same record to every reader, for the whole life of a topic."),
)
"""The rules that are checked while the history is read (truth/sightings.py)."""

RULES: dict[str, Rule] = {
    rule.name: rule
    for rules in (
        visible.RULES,
        READ_RULES,
        last_word.RULES,
        no_return.RULES,
        erased.RULES,
        positions.RULES,
        groups.RULES,
    )
    for rule in rules
}
"""All rules, by name."""

CHECKS: tuple[Callable[[Truth, Findings], None], ...] = (
    visible.check,
    last_word.check,
    no_return.check,
    erased.check,
    positions.check,
    groups.check,
)

__all__ = ["CHECKS", "RULES", "Rule"]
