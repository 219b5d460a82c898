"""The sources of a data folder, over the admin API: those that this server runs, and those that run beside it."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI

from lastword.admin import models
from lastword.admin.context import AdminContext
from lastword.clock import Clock
from lastword.connect import states
from lastword.record_json import Json


def add(app: FastAPI, context: AdminContext) -> None:
    folder, clock = context.log.path, context.log.clock

    @app.get("/v1/connectors", tags=["connectors"])
    def list_connectors() -> list[Json]:
        """List every source that has run on this data folder, with its state, progress and problems."""
        return states.load_statuses(folder, clock)

    @app.get("/v1/connectors/{name}", tags=["connectors"])
    def describe_connector(name: str) -> Json:
        """Describe one source: its state, progress and problems."""
        return states.load_status(folder, name, clock)

    @app.post("/v1/connectors/{name}/pause", tags=["connectors"])
    def pause_connector(name: str, _nothing: models.Nothing) -> Json:
        """Pause a source after its current chunk. It stays paused across restarts."""
        return states.pause(folder, name)

    @app.post("/v1/connectors/{name}/resume", tags=["connectors"])
    def resume_connector(name: str, _nothing: models.Nothing) -> Json:
        """Resume a paused source."""
        return states.resume(folder, name)


def summary(folder: Path, clock: Clock, problem: str | None) -> Json:
    """Return the sources' part of a server's status."""
    found = states.load_statuses(folder, clock)
    return {"states": {each["source"]: each["state"] for each in found}, "problem": problem}
