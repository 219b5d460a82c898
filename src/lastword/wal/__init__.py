"""The write-ahead log of one partition: what makes an append durable before it is acknowledged.

A partition's folder, `wal/<namespace>/<topic>/<topic id>/<partition>/`:

    wal.<seq>.log     Kafka v2 record batches, one after the other, as in Kafka's own segment files.
                      The last one is the active file; the others are rolled and never change again.
    writer.json       the writer's: the files with their first offsets, the leader epochs, known damage
    wal.state         the writer's: how far the active file is visible and how far it is durable
    deleter.json      the deleter's: where the WAL starts now
    aside/            what recovery cut off or repair replaced, kept for a while for people to look at

Read in this order: files, state, checkpoint (the formats); writer; recovery; reader; deleter; repair.
"""
