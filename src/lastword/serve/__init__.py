"""`lastword serve`: a supervisor and the two processes that it starts.

supervisor.py  starts both, starts again what ends by itself, stops them
child.py       what both have in common: how they are started, say that they are ready, and end with the supervisor
template.py    what both are forked from
forked.py      the template and the processes, seen from the supervisor
broker.py      the broker's process: Kafka endpoint, WAL writer, admin API, sources
sources.py     the sources that run in it
priority.py    how the worker gives way
worker.py      the worker's process: sealing, compaction, retention, and what the admin API asks for
"""
