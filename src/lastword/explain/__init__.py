"""Explains where each record is, whether the next compaction run keeps it, by which rule, and until when.

inspecting.py  a partition as the run will find it: its segments, and the WAL sealed to a scratch folder
contest.py     finds the winners among some keys
verdict.py     the verdict on one record: the rule, what it waits for, until when
words.py       verdicts in words
model.py       the parts of an explanation
data.py        explanations as plain data
partition.py   explains records of one partition
topic.py       explains records of a topic, partition by partition

Nothing here decides about records. The plan is compaction's own (compaction/plan.py), and so are the rules, the walk
over the keys (compaction/survivors.py) and the segments that are left alone (compaction/task.py). This package
asks them about some records and puts the answer into words.
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
