"""The place of a server: its folder, its disk, its catalog, its warehouse and its clock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml
from tests.support.postgres import Cluster
from tests.support.real_history.clock import ServerClock, can_move
from tests.support.real_history.plan import Plan
from tests.support.real_history.proxy import Proxy, proxy_before
from tests.support.s3 import S3Server
from tests.support.small_disk import SmallDisk, small_disk

DISK_SIZE = "96m"
DEFECTS = Path(__file__).with_name("defects")


class Supplies(Protocol):
    """Servers that cost time to start. Each is started when it is first needed."""

    def cluster(self) -> Cluster: ...

    def s3(self) -> S3Server: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceAtHand:
    """A place that exists."""

    data: Path
    """The data folder. `lastword.yaml` is in it."""
    elsewhere: Path
    """A folder for backups, and for what is restored from them."""
    settings: dict[str, Any]
    environment: dict[str, str]
    clock: ServerClock
    disk: SmallDisk | None
    proxy: Proxy | None
    cluster: Cluster | None


@contextmanager
def place_for(plan: Plan, folder: Path, supplies: Supplies) -> Iterator[PlaceAtHand]:
    """Make the place of a plan in a folder."""
    place = plan.place
    if place.steps_clock and not can_move():
        pytest.skip("there is no C compiler (scripts/ensure-cc installs one)")
    settings = dict(plan.broker)
    catalog: dict[str, str] = {}
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk", DISK_SIZE)) if place.disk == "small" else None
        data = (folder if disk is None else disk.path) / "data"
        data.mkdir()
        cluster = supplies.cluster() if place.catalog == "postgres" else None
        if cluster is not None:
            catalog |= {"type": "sql", "uri": cluster.new_database()}
        proxy = None
        if place.warehouse == "s3":
            s3 = supplies.s3().new_bucket()
            settings["warehouse"] = f"s3://{s3.bucket}/warehouse"
            if place.fails_store:
                proxy, s3 = stack.enter_context(proxy_before(s3, plan.seed))
            catalog |= s3.properties
        if catalog:
            settings["catalog"] = catalog
        (data / "lastword.yaml").write_text(yaml.safe_dump(settings))
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        clock = ServerClock()
        yield PlaceAtHand(
            data=data,
            elsewhere=elsewhere,
            settings=settings,
            environment={
                **(clock.environment(folder) if place.steps_clock else {}),
                **(_defective(place.defect) if place.defect is not None else {}),
            },
            clock=clock,
            disk=disk,
            proxy=proxy,
            cluster=cluster,
        )


def _defective(defect: str) -> dict[str, str]:
    """Return the variables of processes with a defect."""
    paths = [str(DEFECTS), os.environ.get("PYTHONPATH", "")]
    return {"LASTWORD_DEFECT": defect, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
