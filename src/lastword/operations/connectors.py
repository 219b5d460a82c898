"""The sources of a data folder: those that a server runs, and those that run beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.record_json import Json

if TYPE_CHECKING:
    from pathlib import Path

    from lastword.clock import Clock
    from lastword.log import Log


def list_connectors(log: Log) -> list[Json]:
    """List every source that has run on this data folder, with its state, progress and problems."""
    from lastword.connect import states

    return states.load_statuses(log.path, log.clock)


def describe_connector(log: Log, name: str) -> Json:
    """Describe one source: its state, progress and problems."""
    from lastword.connect import states

    return states.load_status(log.path, name, log.clock)


def pause_connector(data_folder: Path, name: str) -> Json:
    """Pause a source after its current chunk. It stays paused across restarts."""
    from lastword.connect import states

    return states.pause(data_folder, name)


def resume_connector(data_folder: Path, name: str) -> Json:
    """Resume a paused source."""
    from lastword.connect import states

    return states.resume(data_folder, name)


def summary(data_folder: Path, clock: Clock, problem: str | None) -> Json:
    """Return the sources' part of a server's status."""
    from lastword.connect import states

    found = states.load_statuses(data_folder, clock)
    return {"states": {each["source"]: each["state"] for each in found}, "problem": problem}
