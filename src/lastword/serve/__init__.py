"""`lastword serve`: a supervisor and the two processes that it starts.

supervisor.py      starts both, restarts them if they end by themselves, stops them
template.py        the process that both are forked from
forked.py          the template and the processes, seen from the supervisor
child.py           the common part of both: reporting that they are ready, ending with the supervisor
broker_process.py  the broker's process: Kafka endpoint, WAL writer, admin API, sources
sources.py         the sources that run in the broker's process
worker_process.py  the worker's process: sealing, compaction, retention, and requests from the admin API
priority.py        the low priority of the worker
ending.py          ending a process in bounded time
"""
