"""Sealed segments: one Iceberg table a topic, one Parquet file a segment.

catalog.py     all topics, as tables of an Iceberg catalog
table.py       one topic: looking at its table, planning, committing, tidying up
model.py       what these speak of: segments, positions, snapshots; and how often one looks again
rows.py        records as they come out of a segment or a WAL
parquet.py     one segment is one Parquet file
footer.py      what a file says of itself: its format, its row groups
raw.py         a segment file column by column, for those who rewrite it
sketch.py      how many distinct keys segments have, from their footers
_keyhash.py    the keys that a sketch keeps, found by compiled code
mapping.py     topics, positions, snapshots and segments in Iceberg's words
commit.py      one change of a table, made whole or not at all
loader.py      loads tables from a catalog
manifests.py   reads manifest lists and manifests
index.py       the segments of a snapshot, in memory
lineage.py     the order of snapshots, and when each was superseded
collector.py   removes files that no live snapshot names
unnamed.py     since when files are named by no live snapshot
older.py       older states of a table whose metadata is damaged
relocation.py  metadata for files that lie in another place now
listing.py     looks at many topics, while some go and some can't be read
storage.py     where catalog and warehouse of a data folder are
fileio.py      files of a table, on a local disk or an object store
foreign.py     foreign errors become ours
"""
