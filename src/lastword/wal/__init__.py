"""The write-ahead log of one partition: what makes an append durable before it is acknowledged.

A partition's folder, `wal/<namespace>/<topic>/<topic id>/<partition>/`:

    wal.<seq>.log     Kafka v2 record batches, one after the other, as in Kafka's own segment files.
                      The last one is the active file; the others are rolled and never change again.
    writer.json       the writer's: the files with their first offsets, the leader epochs, known damage
    wal.state         the writer's: how far the active file is visible and how far it is durable
    deleter.json      the deleter's: where the WAL starts now
    aside/            what recovery cut off or repair replaced, kept for a while for people to look at

files.py       names of files, and the batches in one
state.py       `wal.state`
checkpoint.py  `writer.json` and `deleter.json`
producers.py   what is known of idempotent producers
writer.py      the only one that appends
flusher.py     syncs once in a while
recovery.py    opens a WAL, whatever state it was left in
reader.py      reads by offset, beside the writer
deleter.py     removes files that are sealed
repair.py      finds damage, and leaves it behind
staged.py      many records to several partitions as one unit
"""
