"""Connectors: data flows into topics from databases, files and other logs, each record exactly once.

config.py    the YAML file: sources by name, checked
options.py   the options of one connector
protocol.py  what a connector is; loading one by its name
appender.py  a source's records and its position become part of the log together
target.py    the log that is appended to: opened here, or held by another process
groups.py    consumer groups whose offsets come from elsewhere
states.py    what is kept of a source in the data folder: lock, pause, status
runner.py    one supervised task a source
metrics.py   the metrics of connectors
file.py      the `file` connector
rotation.py  what a file has become by rotation
kafka/       the `kafka` connector
postgres/    the `postgres-cdc` connector
"""

from lastword.connect.config import ConnectConfig
from lastword.connect.protocol import Chunk, Connector, Context, Position, SourceRecord
from lastword.connect.runner import Connectors

__all__ = ["Chunk", "ConnectConfig", "Connector", "Connectors", "Context", "Position", "SourceRecord"]
