"""A history checker: it records requests and responses, and decides whether a log that keeps its promises can produce them.

It knows Kafka's compaction rules and nothing about Lastword, so it checks any log of keyed records in partitions. The
nouns, in the order in which they are created: an *operation* is one request and its response; a *recorder* records
operations while a test runs; a *history* is all operations in one order; `check` compares it with the *rules* and returns
a *report*; `tell` turns each *anomaly* of a report into a *story*.

    recorder = Recorder()
    with recorder.produce("users", 0, [ProducedRecord(key=b"alice", value=b"v1")], process="c1") as op:
        op.acknowledged(base_offset=0)
    with recorder.fetch("users", 0, from_offset=0, process="c2") as op:
        op.returned([SeenRecord(offset=0, key=b"alice", value=b"v1")], next_offset=1)
    report = check(recorder.history())
    assert report.ok, tell(report)

events.py      the kinds of operations
recorder.py    records operations from many threads and processes
lines.py       operations as JSON lines
history.py     operations in order
options.py     the properties of a system
check.py       compares a history with all rules
truth/         the logs, as far as a history shows them
rules/         the promises of a log, one file per group of rules
findings.py    counts and anomalies, collected while the rules check
report.py      the result of a check
story.py       anomalies as text
words.py       records and times as text
__main__.py    the command line
"""

from lastword.testing.history.check import check
from lastword.testing.history.events import (
    DeleteRecords,
    Erase,
    Fetch,
    OffsetCommit,
    OffsetRead,
    Operation,
    Outcome,
    Point,
    Positions,
    Produce,
    ProducedRecord,
    Restart,
    RestartKind,
    Restore,
    SeenRecord,
    StateRead,
    Takeover,
    TimeTravel,
    TopicCreated,
    TopicDeleted,
    TopicSettings,
)
from lastword.testing.history.history import History
from lastword.testing.history.options import Options
from lastword.testing.history.recorder import Recorder
from lastword.testing.history.report import Anomaly, Report
from lastword.testing.history.rules import RULES, Rule
from lastword.testing.history.story import story, tell

__all__ = [
    "RULES",
    "Anomaly",
    "DeleteRecords",
    "Erase",
    "Fetch",
    "History",
    "OffsetCommit",
    "OffsetRead",
    "Operation",
    "Options",
    "Outcome",
    "Point",
    "Positions",
    "Produce",
    "ProducedRecord",
    "Recorder",
    "Report",
    "Restart",
    "RestartKind",
    "Restore",
    "Rule",
    "SeenRecord",
    "StateRead",
    "Takeover",
    "TimeTravel",
    "TopicCreated",
    "TopicDeleted",
    "TopicSettings",
    "check",
    "story",
    "tell",
]
