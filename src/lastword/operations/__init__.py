"""The operations on a log, in plain data: arguments and results are JSON values.

table.py        the table of all operations: names, roles, processes, paths
topics.py       list, create, change, delete, seal, history, settings
describing.py   description of a topic: positions, settings, problems
appending.py    append records
records.py      read records
options.py      options that several channels take: keys in base64, options that exclude each other
groups.py       consumer groups, as stored in the log
connectors.py   the sources of a data folder
picking.py      shared parts of pages: views of a topic, picking records by offset
record_page.py  pages of records, newest first
state_page.py   pages of the state, by key
explaining.py   why records stay or go
compaction.py   compaction, its proof, and erasure
cleaning.py     one round of retention
backups.py      backups and restores
wal.py          the contents of the write-ahead logs
working.py      the worker: its status, and running every job once
maintaining.py  the maintenance role, for requests by people
text.py         human-readable numbers

The command line, the admin API and the worker's process all call these, each on a log that it has opened in the role
that the operation needs. So the same result is printed as tables, printed as JSON, and sent over HTTP.

A long-running function takes `progress`, which it calls with the name of a stage and numbers. If it can end early, it
also takes `stop`, which it checks between commits.
"""
