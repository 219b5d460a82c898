"""A compaction as something to watch: frames of a run, from the engine's own plan, walk, verdicts and snapshots.

code.py    the steps of a run as short, readable code; each frame names the line that it is at
walk.py    finding the winners, one record at a time, on the real finder and its real set of keys
frames.py  a picture of a partition; the frames of a run, before it is made and after
story.py   alice, bob and carol: a log of its own with a clock that can be moved

Everything that is returned is plain data for JSON. Of long values there is only the beginning.
"""

from lastword.scene.frames import MAX_RECORDS, finish, perform, picture, rehearse
from lastword.scene.story import TOPIC as STORY_TOPIC
from lastword.scene.story import Story

__all__ = ["MAX_RECORDS", "STORY_TOPIC", "Story", "finish", "perform", "picture", "rehearse"]
