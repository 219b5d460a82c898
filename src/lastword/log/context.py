"""The parts of an open log that everything in it shares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lastword.clock import Clock
from lastword.config import BrokerConfig
from lastword.folder.leases import LeaseKeeper


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """The data folder of an open log, its settings, its clock and its leases."""

    data_folder: Path
    config: BrokerConfig
    clock: Clock
    leases: LeaseKeeper
