"""What keeps a log in order.

tiering.py       sealing: from the WAL to segments
retention.py     retention, expiry of snapshots, collection of files
erase.py         erasing keys, also from the past
remains.py       what an erasure could not remove
verify.py        proof that a compaction kept the rules
worker_state.py  what the worker has done and what is next
lanes.py         which jobs may run beside each other
backup/          copies of a whole log
relocating.py    a folder that was moved or copied
ownership.py     who owns the tables of a shared catalog
takeover.py      taking them over
rescue.py        records that a former owner never sealed
repairing.py     tables that can't be read
"""
