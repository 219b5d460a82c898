"""A simulation of Lastword: the product's own code in one process, scheduled by a seed, without sleeps.

    python -m lastword.testing.simulation --seeds 0-299

fibers.py       threads that a seed schedules, and a clock that advances when all of them wait
sockets.py      sockets in memory, and the event loop over them
power.py        a disk that loses unsynced bytes
store.py        an object store that fails
machine.py      processes, the clock, and all of the above, installed below the product
plan.py         the events of a simulation, as data, derived from a seed
client.py       a client of Kafka's protocol
reader.py       a client that opens the data folder itself
query.py        queries of other engines, whose files must not be removed
clients.py      producers, consumers and groups
operating.py    the operator
server.py       the broker and the worker, restarted when they end
faults.py       faults: kills, power cuts, failing syncs and requests
world.py        one simulation, and its history
mutations.py    defects that simulations must find
coverage.py     the pairs of steps that have met
running.py      many simulations, each in a fork
shrinking.py    makes failing plans smaller
command.py      the command line
bootstrap.py    the process that simulations are forked from
__main__.py     starts that process, with its own environment

The checker in `lastword.testing.history` checks the history. Nothing here is part of a server.
"""
