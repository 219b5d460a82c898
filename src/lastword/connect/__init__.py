"""Connectors: append data from databases, files and other logs to topics, each record exactly once.

config.py       the YAML file of sources, parsed and checked
options.py      the options of one connector
protocol.py     the interface of a connector; loads one by its name
appender.py     appends a source's records together with its position
destination.py  the log to append to: opened here, or held by another process
groups.py       consumer groups whose offsets come from elsewhere
states.py       the state of a source in the data folder: lock, pause, status
runner.py       one supervised task per source
metrics.py      the metrics of connectors
file.py         the `file` connector
rotation.py     finds the files of a rotation
kafka/          the `kafka` connector
postgres/       the `postgres-cdc` connector
"""

from lastword.connect.config import ConnectConfig
from lastword.connect.protocol import Chunk, Connector, Context, Position, SourceRecord
from lastword.connect.runner import Connectors

__all__ = ["Chunk", "ConnectConfig", "Connector", "Connectors", "Context", "Position", "SourceRecord"]
