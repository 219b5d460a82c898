"""`lastword serve`: a supervisor and the two processes that it starts.

supervisor.py  starts both, starts again what ends by itself, stops them
template.py    what both are forked from
forked.py      the template and the processes, seen from the supervisor
child.py       what both have in common: how they say that they are ready, and end with the supervisor
broker.py      the broker's process: Kafka endpoint, WAL writer, admin API, sources
sources.py     the sources that run in it
worker.py      the worker's process: sealing, compaction, retention, and what the admin API asks for
priority.py    how the worker gives way
ending.py      how a process ends in bounded time
"""
