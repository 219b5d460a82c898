"""A visible compaction: frames of a run, from the engine's own plan, walk, verdicts and snapshots.

code.py    the steps of a run as short, readable code; each frame names its line
walk.py    finding the winners one record at a time, with the real finder and its real set of keys
frames.py  a picture of a partition, and the frames of a run
story.py   alice, bob and carol: a separate log with a clock that can be moved

All results are plain data for JSON. Long values are truncated.
"""

from lastword.admin.scene.frames import MAX_RECORDS, finish, perform, picture, rehearse
from lastword.admin.scene.story import TOPIC as STORY_TOPIC
from lastword.admin.scene.story import Story

__all__ = ["MAX_RECORDS", "STORY_TOPIC", "Story", "finish", "perform", "picture", "rehearse"]
