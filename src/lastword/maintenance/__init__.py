"""The jobs that maintain a log.

tiering.py       sealing: from the WAL to segments
retention.py     retention, snapshot expiry, file collection
erase.py         erasing keys, including from old snapshots
remains.py       copies of keys that an erasure could not remove
verify.py        proof that a compaction kept the rules
worker_state.py  the worker's past and next runs
lanes.py         which jobs may run concurrently
backup/          backups of a whole log
relocating.py    data folders that were moved or copied
ownership.py     ownership of the tables in a shared catalog
takeover.py      taking over a topic from another data folder
rescue.py        records that a former owner never sealed
repairing.py     repair of tables that can't be read
"""
