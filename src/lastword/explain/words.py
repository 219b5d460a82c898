"""Verdicts in words."""

from __future__ import annotations

from lastword.compaction.strategy import strategy_of
from lastword.config import TopicSettings
from lastword.explain.model import Verdict
from lastword.record_json import time_text


def reason(verdict: Verdict, settings: TopicSettings, *, is_tombstone: bool) -> str:
    """Return why a record goes or stays, as a clause."""
    strategy = strategy_of(settings)
    match verdict.rule:
        case "below the log start":
            said = "below the log start: it has been deleted"
        case "beaten":
            said = f"beaten by offset {verdict.beaten_by}, {strategy.beats}"
            if verdict.at_seal:
                said += ", when both are sealed"
            if is_tombstone and strategy.order == "oldest":
                said += "; a tombstone behind an older record has no effect"
        case "expired tombstone":
            said = "an expired tombstone that an earlier run has passed and that no reader needs"
        case "too old":
            said = f"older than retention.ms={settings.retention_ms}"
        case "last word" if verdict.beaten_by is not None:
            said = "no record that may be compacted now beats it"
        case "last word":
            said = strategy.wins
        case "tombstone" if verdict.beaten_by is not None:
            said = "a tombstone, and no record that may be compacted now beats it"
        case "tombstone":
            said = f"a tombstone, {strategy.wins}"
        case "no key":
            said = "it has no key, so nothing replaces it"
        case "not compacted":
            said = "the topic is not compacted: records don't replace each other"
        case "not in the run":
            said = "only in the WAL" if verdict.waits_for == "sealing" else "held back"
    waits = _waits(verdict)
    return f"{said}; {waits}" if waits else said


def _waits(verdict: Verdict) -> str | None:
    until = "" if verdict.until_ms is None else f" {time_text(verdict.until_ms)}"
    later = f", then offset {verdict.beaten_by} beats it" if verdict.beaten_by is not None else ""
    match verdict.waits_for:
        case None:
            return None
        case "a run":
            return "it would go, but there is no run" if verdict.rule != "below the log start" else None
        case "sealing":
            return f"it waits to be sealed, at the latest{until or ' when the WAL rolls'}{later}"
        case "min.compaction.lag.ms":
            return f"records up to it are younger than min.compaction.lag.ms until{until or ' later'}{later}"
        case "newer record":
            return f"offset {verdict.beaten_by} beats it as soon as that may be compacted{until and ', from' + until + ' on'}"
        case "retention.ms":
            return f"it is too old from{until} on, by retention.ms"
        case "first run":
            if verdict.until_ms is None:
                return f"no run has passed it yet{later}"
            return f"this is the first run that passes it: it may go from{until} on, with a later run{later}"
        case "expiry":
            return f"it expires{until}{later}" if until else f"it has no deadline yet{later}"
        case "late records":
            return f"records that can't be compacted yet may have an older version of its key{later}"
        case "reader":
            names = ", ".join(f"{each.reader!r} is at {each.position}" for each in verdict.readers)
            longest = f", at most until{until}" if until else ""
            return f"it waits for readers ({names}){longest}{later}"
