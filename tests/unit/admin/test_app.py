"""The paths of the admin API that are made from the table of operations."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

import lastword
from lastword.admin import app as admin_app
from lastword.admin.context import AdminContext, WorkerClient
from lastword.admin.jobs import Jobs
from lastword.config import BrokerConfig


def get(app: FastAPI, path: str) -> Any:
    async def answer() -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return (await client.get(path)).json()

    return asyncio.run(answer())


def test_settings_that_clients_have_changed_are_shown(tmp_path: Path) -> None:
    with lastword.open(tmp_path, create=True) as log:
        app = admin_app.build(AdminContext(log, WorkerClient(tmp_path / "no.sock")), Jobs(), version="0")
        log.config = BrokerConfig.from_mapping({"num.partitions": 7}, where="a client")
        shown = {each["key"]: each["value"] for each in get(app, "/v1/config")}
        assert shown["num.partitions"] == "7"
