"""The logs themselves, as far as a history shows them.

The nouns, in the order in which they are created: the *clockline* is the server's clock over the order; *windows* are a
topic's settings over time; a topic has *lives*; each life has a *partition log* per partition, with *entries*.

clockline.py    the server's clock over the order, and when doubts end
settings.py     a topic's settings over time, as far as the rules depend on them
lives.py        the lives of a topic
partition.py    the log of a partition in one life
entries.py      the records that are or may be in a log
sent.py         the records that were sent, by key and value
sightings.py    the records that were seen, compared with those that were sent
inheritance.py  the part of its parent's log that a life keeps after a cut
excuses.py      when the removal of a record becomes permitted
reading.py      builds all of these from a history
"""
