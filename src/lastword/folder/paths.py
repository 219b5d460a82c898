"""Where things are in a data folder. Nothing else in the package knows the name of a file or a folder in it.

lastword.yaml         settings, if there is no other file given; the user's
FORMAT                the version of this layout
IDENTITY              which folder this is, and where it lives
RESTORING             there while a backup is being restored to the folder
cluster.id            what Kafka clients are told of the cluster
broker.settings.json  settings that Kafka clients have changed
producer.ids          which ids of idempotent producers have been given
uptime.json           when the log was maintained, and when it was not
worker.json           what the worker did, and where its next life goes on
locks/                who is the writer, who does maintenance
run/                  the server that holds the folder
leases/               jobs and replays that are running
wal/                  the write-ahead logs (lastword.wal says what is in one); beside those of a topic, in `owned.json`,
                          the incarnations of this folder that its table may name
staging/              units that are on their way to a WAL; `committed.json` says which was the last
catalog.db            the catalog of the tables (SQLite), unless the settings name another one
warehouse/            the sealed segments, unless the settings name another place
readers/              the positions that named readers, and in groups/ consumer groups, have committed
connect/              of each source: `unit.json` (its position), `status.json`, `groups.json`, and its locks
creating/             topics whose creation has been asked for and is not done yet
deleting/             topics whose deletion has been asked for and is not done yet
erasing/              keys that have been asked to be erased and are not yet
logs/                 what Spark says
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
COMMITTED_FILE: Final = "committed.json"

CATALOG_FILE: Final = "catalog.db"
WAREHOUSE_FOLDER: Final = "warehouse"
READERS_FOLDER: Final = "readers"
GROUPS_FOLDER: Final = "groups"
CONNECT_FOLDER: Final = "connect"
JOURNAL_FILE: Final = "unit.json"
SOURCE_STATUS_FILE: Final = "status.json"
SOURCE_GROUPS_FILE: Final = "groups.json"
CREATING_FOLDER: Final = "creating"
DELETING_FOLDER: Final = "deleting"
ERASING_FOLDER: Final = "erasing"
LOGS_FOLDER: Final = "logs"


def wal_folder(data_folder: Path, name: str, topic_id: UUID) -> Path:
    """Where the WALs of a topic's partitions are."""
    namespace, rest = split_name(name)
    return data_folder / WAL_FOLDER / namespace / rest / topic_id.hex


def foreign_wal_folder(data_folder: Path, topic_id: UUID) -> Path:
    """Where the WALs of a topic that another data folder owns would be here. Nothing is ever written there."""
    return data_folder / WAL_FOLDER / ".foreign" / topic_id.hex


def spark_log(data_folder: Path) -> Path:
    return data_folder / LOGS_FOLDER / "spark.log"


def notes(folder: Path) -> list[Path]:
    """The notes in a folder, but for those that are being written: these say nothing yet."""
    return sorted(note for note in folder.iterdir() if not note.suffix) if folder.exists() else []
