"""Reading: what can be read of a partition, and from where.

reader.py      one partition: sealed segments, then the WAL's tail
timetravel.py  as it was at an offset, a time or a snapshot
state.py       the newest record of each key
compacted.py   what a compaction service has kept
streaming.py   several partitions as one stream
readers.py     named readers and their positions
"""
