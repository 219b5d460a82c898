"""The layout of a data folder. Nothing else in the package knows the name of a file or a folder in it.

lastword.yaml         the user's settings, unless another file is given
FORMAT                the version of this layout
IDENTITY              the id of this folder, and its path
RESTORING             exists while a backup is being restored to the folder
cluster.id            the cluster id for Kafka clients
broker.settings.json  settings that Kafka clients have changed
producer.ids          the ids of idempotent producers that have been assigned
uptime.json           when the log was maintained, and when it was not
worker.json           the status of the worker, from which its next start continues
locks/                the holders of the writer, maintenance and other roles
run/                  the server that holds the folder
leases/               jobs and replays that are running
wal/                  the write-ahead logs (lastword.wal describes one), and for each topic an `owned.json` with
                          the incarnations of this folder that its table may name
staging/              units that are on their way to a WAL: `unit.json` names the files of one, and `committed.json`
                          has the number of the last one
catalog.db            the catalog of the tables (SQLite), unless the settings name another one
warehouse/            the sealed segments, unless the settings name another place
readers/              the positions that named readers, and in groups/ consumer groups, have committed
connect/              for each source: `unit.json` (its position), `status.json`, `groups.json`, `paused`, its locks
creating/             topics whose creation was requested and is not done yet
deleting/             topics whose deletion was requested and is not done yet
erasing/              keys whose erasure was requested and is not done yet
logs/                 the output of Spark
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import UUID

from lastword.config import split_name

CONFIG_FILE: Final = "lastword.yaml"
FORMAT_FILE: Final = "FORMAT"
IDENTITY_FILE: Final = "IDENTITY"
RESTORING_FILE: Final = "RESTORING"
CLUSTER_ID_FILE: Final = "cluster.id"
BROKER_SETTINGS_FILE: Final = "broker.settings.json"
PRODUCER_IDS_FILE: Final = "producer.ids"
UPTIME_FILE: Final = "uptime.json"
WORKER_FILE: Final = "worker.json"

LOCKS_FOLDER: Final = "locks"
RUN_FOLDER: Final = "run"
SERVER_FILE: Final = "server.json"
STARTING_FILE: Final = "starting.json"
LEASES_FOLDER: Final = "leases"

WAL_FOLDER: Final = "wal"
OWNED_FILE: Final = "owned.json"
WRITER_FILE: Final = "writer.json"
DELETER_FILE: Final = "deleter.json"
WAL_STATE_FILE: Final = "wal.state"
PRODUCERS_FILE: Final = "producers.json"
ASIDE_FOLDER: Final = "aside"
STAGING_FOLDER: Final = "staging"
UNIT_FILE: Final = "unit.json"
COMMITTED_FILE: Final = "committed.json"

CATALOG_FILE: Final = "catalog.db"
WAREHOUSE_FOLDER: Final = "warehouse"
READERS_FOLDER: Final = "readers"
GROUPS_FOLDER: Final = "groups"
CONNECT_FOLDER: Final = "connect"
JOURNAL_FILE: Final = "unit.json"
SOURCE_STATUS_FILE: Final = "status.json"
SOURCE_GROUPS_FILE: Final = "groups.json"
SOURCE_LOCK_FILE: Final = "lock"
SOURCE_PAUSED_FILE: Final = "paused"
CREATING_FOLDER: Final = "creating"
DELETING_FOLDER: Final = "deleting"
ERASING_FOLDER: Final = "erasing"
LOGS_FOLDER: Final = "logs"


def wal_folder(data_folder: Path, name: str, topic_id: UUID) -> Path:
    """Return the folder of the WALs of a topic's partitions."""
    namespace, rest = split_name(name)
    return data_folder / WAL_FOLDER / namespace / rest / topic_id.hex


def foreign_wal_folder(data_folder: Path, topic_id: UUID) -> Path:
    """Return the folder for the WALs of a topic that another data folder owns. Nothing is ever written there."""
    return data_folder / WAL_FOLDER / ".foreign" / topic_id.hex


def spark_log(data_folder: Path) -> Path:
    return data_folder / LOGS_FOLDER / "spark.log"


def notes(folder: Path) -> list[Path]:
    """Return the notes in a folder, except half-written ones: these mean nothing yet."""
    return sorted(note for note in folder.iterdir() if not note.suffix) if folder.exists() else []
