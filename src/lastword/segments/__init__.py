"""Sealed segments: one Iceberg table per topic, one Parquet file per segment.

catalog.py     all topics, as tables of an Iceberg catalog
table.py       one topic: reads its table, plans, commits, expires, collects
model.py       segments, positions, snapshots; and the retries of reads and commits
rows.py        records as they are read from a segment or a WAL
parquet.py     segment files: one segment is one Parquet file
schema.py      the columns of a segment file
writer.py      writes a segment file
footer.py      the footer of a segment file: its format, its row groups
marks.py       the rows of a segment that are gone before its file is rewritten
marking.py     marks rows of a segment
scan.py        reads the records of a segment file
raw.py         a segment file column by column, for code that rewrites it
damage.py      tells apart damaged files, missing ones, and storage that does not answer
sketch.py      estimates how many distinct keys segments have, from their footers
_keyhash.py    finds the keys that a sketch keeps, in compiled code
mapping.py     topics, positions, snapshots and segments in Iceberg's terms
commit.py      one change of a table, all or nothing
producer.py    the manifests of a new snapshot
loader.py      loads tables from a catalog
sql_catalog.py commits to a SQL catalog, at a cost that hardly grows with the number of snapshots
manifests.py   reads manifest lists and manifests
index.py       the segments of a snapshot, in memory
lineage.py     the order of snapshots, and when each was superseded
collector.py   removes files that no live snapshot names
unnamed.py     notes how long no live snapshot has named a file
older.py       older states of a table whose metadata is damaged
relocation.py  rewrites metadata for files that were moved
listing.py     visits many topics, some of which may be deleted or unreadable
storage.py     the locations of a data folder's catalog and warehouse
fileio.py      files of a table, on local disk or in an object store
foreign.py     turns foreign errors into ours
"""
