"""A real server with real clients, judged by the history checker.

In the order in which they come into being: a *plan* is what a seed chooses; a *place* is what surrounds the server: a
folder, a catalog, a warehouse, a disk and a clock; the *server* is `lastword serve`, started again when it was killed;
*clients* ask it and write down what they are told; *misfortunes* are what goes wrong; a *run* carries out a plan, and
its *outcome* is the checker's report with counts.

plan.py        what a seed chooses
clock.py       the clock of the server's processes, which can be moved
proxy.py       a process between the server and S3 that makes requests slow, fails them, and drops answers
place.py       the folder, the catalog, the warehouse and the disk
served.py      the server's processes: start, kill, stop
recording.py   what all clients share: the recorder, unique values, patience
producing.py   producers
consuming.py   consumers, members of a group
reading.py     reads of the state, the past and the positions
operating.py   the operator: maintenance, erasures, settings, topics
misfortune.py  what goes wrong
run.py         a run, from the first topic to the last read
"""
