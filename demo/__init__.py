"""`make demo`: a changelog of a million records, from the first append to the proof that compaction lost nothing."""
