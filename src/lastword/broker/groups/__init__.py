"""Consumer groups: who is a member, who has which partitions, and how far each group has read.

coordinator.py   the rules: join, sync, heartbeat, leave. Pure: time, timers and storage are passed in
group.py         one group: its state and its members
members.py       a member, what it asks for and what it is answered
subscription.py  the topics that a consumer's metadata names, and the partitions of its assignment
timers.py        deadlines by name
offsets.py       the committed offsets of all groups, in memory
records.py       the internal topic's keys and values
replay.py        what the internal topic says, also where a part of it can't be read
store.py         the internal topic: written before anything is answered, replayed at the start
holds.py         positions of groups, for compaction, which must not take a tombstone that a group has not read
describing.py    groups as plain data, with how far they are behind
stored.py        groups as the log has them, for when no server runs
service.py       all of it together, on the event loop
handlers.py      Kafka's requests and answers
"""
