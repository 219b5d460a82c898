"""The data folder: its layout, and the coordination of the processes that use it.

paths.py       the layout: names of files and folders
disk.py        writes that survive a power failure
steps.py       named steps where tests stop or kill the process
state_file.py  small JSON files
identity.py    the identity of the folder, even after a move or a copy
processes.py   whether a process is still running
locks.py       the roles, each for one process at a time: writer, worker, maintenance, backup
leases.py      files that a reader or a job still needs
intents.py     erasures that were requested but are not done
running.py     the server that holds the folder
channel.py     requests between processes
problems.py    errors sent between processes
"""
