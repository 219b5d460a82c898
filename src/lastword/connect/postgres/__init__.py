"""`postgres-cdc`: the rows of PostgreSQL tables and every change of them, by logical replication (`pgoutput`).

config.py       the options
database.py     connections, tables and their keys, publication and slot
rights.py       what a role lacks
preparation.py  what must be there
values.py       the text of a value, of every type, as JSON
rows.py         rows and changes as records
pgoutput.py     the messages of the protocol
position.py     where a source stands: snapshots that were read, and the place in the stream
snapshot.py     the first rows
sweep.py        rows that went without a word
partitions.py   partitions that come and go
toast.py        large values that the stream leaves out
changes.py      the stream's changes as records, transaction by transaction
stream.py       the messages of a slot
connector.py    all of it together
"""

from lastword.connect.postgres.connector import PostgresConnector

__all__ = ["PostgresConnector"]
