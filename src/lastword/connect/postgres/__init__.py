"""`postgres-cdc`: the rows of PostgreSQL tables and all their changes, by logical replication (`pgoutput`).

config.py       the options
database.py     connections, tables and their keys, publication and slot
rights.py       the rights that a role lacks
preparation.py  looks up or creates the things that a source needs
values.py       the text of a value, of every type, as JSON
rows.py         rows and changes as records
pgoutput.py     the messages of the protocol
position.py     the position of a source: snapshots that were read, and the place in the stream
snapshot.py     the first rows
sweep.py        rows that were removed without a change in the stream
tables.py       the rows of tables as records, at first and later
partitions.py   partitions that come and go
toast.py        large values that the stream leaves out
changes.py      the stream's changes as records, transaction by transaction
stream.py       the messages of a slot
monitor.py      the progress of a source, and the WAL that PostgreSQL keeps for it
connector.py    the connector as a whole
"""

from lastword.connect.postgres.connector import PostgresConnector

__all__ = ["PostgresConnector"]
