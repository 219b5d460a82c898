"""Consumer groups: their members, the partitions that each member has, and the committed offsets.

coordinator.py     the rules: join, sync, heartbeat, leave. Pure: clocks and storage are passed in
rebalances.py      the rules from one generation of a group to the next
static_members.py  static members, which keep their place while they restart
deadlines.py       the times at which the coordinator must act for a group or a member
group.py           one group: its state and its members
members.py         a member, its requests and their answers
subscription.py    the topics in a consumer's metadata, and the partitions of its assignment
timers.py          deadlines by name
offsets.py         the committed offsets of all groups, in memory, and which of them expire
commits.py         commits, lookups, deletion and expiry of offsets: memory, store and holds together
records.py         the internal topic's keys and values
replay.py          reads the internal topic, even if a part of it can't be read
store.py           the internal topic: written before anything is answered, replayed at the start
holds.py           positions of groups, for compaction, which must keep a tombstone that a group has not read
describing.py      groups as plain data, with their lag
stored.py          groups as stored in the log, for when no server runs
service.py         all of it on the event loop: loading, timers, work in the background
handlers.py        Kafka's requests and answers
"""
