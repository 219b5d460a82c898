"""The data folder: where things are in it, and what keeps processes out of each other's way.

paths.py       where things are
disk.py        writes that survive a power cut
steps.py       named steps, at which tests stop or kill
state_file.py  small JSON files
identity.py    which folder it is, also after a move or a copy
processes.py   whether a process is still there
locks.py       the roles, each for one process at a time: writer, worker, maintenance, backup
leases.py      files that a reader or a job still needs
intents.py     erasures that have been asked for
running.py     the server that holds the folder
channel.py     how processes ask each other
problems.py    errors on their way between processes
"""
