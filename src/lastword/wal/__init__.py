"""The write-ahead log of one partition, which makes an append durable before it is acknowledged.

A partition's folder, `wal/<namespace>/<topic>/<topic id>/<partition>/`:

    wal.<seq>.log     Kafka v2 record batches, one after the other, as in Kafka's own segment files.
                      The last one is the active file. The others are rolled and never change again.
    writer.json       the writer's: the files with their first offsets, the leader epochs, known damage
    wal.state         the writer's: how far the active file is visible and how far it is durable
    deleter.json      the deleter's: where the WAL starts now
    aside/            bytes that recovery cut off or repair replaced, kept for a while for inspection

files.py       the names of files, and the batches in a file
state.py       `wal.state`
checkpoint.py  `writer.json` and `deleter.json`
producers.py   the state of idempotent producers
active.py      the active file: takes batches, syncs them, shows them to readers
writer.py      the only writer of a partition: appends and rolls
flusher.py     syncs at an interval
recovery.py    opens a WAL, whatever state it was left in
reader.py      reads by offset, while the writer appends
deleter.py     removes files that are sealed
rolled.py      files that are still to be sealed, read whole or span by span
repair.py      finds damage and skips it
staged.py      appends many records to several partitions as one unit
"""
