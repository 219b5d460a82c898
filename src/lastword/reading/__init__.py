"""Reading: what can be read of a partition, and from where.

reader.py      one partition: sealed segments, then the WAL's tail
timetravel.py  as it was at an offset, a time or a snapshot
winners.py     which rows win their keys, in bounded memory
state.py       the state: those rows
compacted.py   what a compaction service has kept
streaming.py   several partitions as one stream
readers.py     named readers and their positions
"""
