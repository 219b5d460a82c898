"""Says of each record where it is, whether it stays or goes in the next compaction run, by which rule, and until when.

inspecting.py  a partition as the run will find it: its segments, and the WAL sealed to a scratch folder
contest.py     who wins among some keys
verdict.py     what that means for one record: the rule, what it waits for, until when
words.py       the same for people
model.py       what an explanation says
data.py        explanations as plain data
partition.py   all of it, for one partition
topic.py       partition by partition

Nothing here decides about records. The plan is compaction's own (compaction/plan.py), and so are the rules, the walk
over the keys (compaction/survivors.py) and what is left alone (compaction/kernels.py); this asks them about some
records and puts the answer into words.
"""

from lastword.explain.model import (
    ExplainedRecord,
    Explanation,
    PartitionExplanation,
    RecordLocation,
    Run,
)
from lastword.explain.partition import Known, Question, explain_partition
from lastword.explain.topic import explain_topic

__all__ = [
    "ExplainedRecord",
    "Explanation",
    "Known",
    "PartitionExplanation",
    "Question",
    "RecordLocation",
    "Run",
    "explain_partition",
    "explain_topic",
]
