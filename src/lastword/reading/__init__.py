"""Reading the records of partitions and topics.

reader.py        one partition: sealed segments, then the WAL's tail
timetravel.py    a partition as of an offset, a time or a snapshot
winners.py       finds the rows that win their keys, in bounded memory
state.py         the state view: those rows
compacted.py     the records that a compaction service keeps
streaming.py     several partitions as one stream
topic_reader.py  several partitions as one sequence; named readers and their positions
"""
