"""What can be asked of a log, in plain data: arguments and results are what JSON has.

table.py        the one table of them: names, roles, processes, paths
topics.py       list, create, change, delete, seal, history, settings
describing.py   what a topic is, where its records are, what is wrong
records.py      append some records, read some
picking.py      what pages of records are made of
record_page.py  pages of records, the newest first
state_page.py   pages of the state, by key
explaining.py   why records stay or go
compaction.py   compaction, its proof, and erasure
cleaning.py     one round of retention
backups.py      backups, and logs made of them
wal.py          what is in the write-ahead logs
working.py      the worker: what it did last, and every job once
maintaining.py  the maintenance role, for something that was asked for by a person
text.py         numbers for people

The command line, the admin API and the worker's process all call these, on a log that each has opened as the
operation needs it. So one and the same result is printed as tables, printed as JSON, and sent over HTTP.

A function that takes long takes `progress`, which is called with the name of a stage and numbers, and where it can
end early `stop`, which it asks between commits.
"""
