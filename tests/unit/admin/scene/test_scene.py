"""The frames of a run: from the engine, as JSON, and true to what was committed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.support.compacted import INLINE_CONFIG
from tests.support.logs import open_log

from lastword import metrics
from lastword.admin import scene
from lastword.admin.exposition import exposition
from lastword.admin.scene import STORY_TOPIC, Story
from lastword.admin.scene.code import listing
from lastword.compaction.strategy import Order
from lastword.errors import InvalidError
from lastword.log import Log
from lastword.record import NewRecord

SEALED_WHOLE = {"cleanup.policy": "compact", "compaction.at.seal": False}
ORDERS: dict[str, Order] = {"offset": "newest", "first": "oldest", "timestamp": "version"}

Frame = dict[str, Any]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(tmp_path / "data", ManualClock(), INLINE_CONFIG) as opened:
        yield opened


def phase(run: dict[str, Any], name: str) -> list[Frame]:
    return [frame for frame in run["frames"] if frame["phase"] == name]


def offsets(picture: dict[str, Any]) -> set[int]:
    return {record["offset"] for segment in picture["segments"] for record in segment["records"]}


def state(picture: dict[str, Any]) -> dict[str, str]:
    return {each["key"]: each["value"] for each in picture["state"]}


def lines(strategy: str) -> set[str]:
    return {line["id"] for part in listing(ORDERS[strategy]) for line in part["lines"]}


def check(run: dict[str, Any]) -> None:
    """What holds for the frames of every run."""
    assert json.loads(json.dumps(run)) == run
    assert [frame["index"] for frame in run["frames"]] == list(range(len(run["frames"])))
    assert {frame["line"] for frame in run["frames"]} - {None} <= lines(run["strategy"])
    decided = {frame["offset"]: frame["goes"] for frame in phase(run, "decide")}
    assert set(decided) == offsets(run["before"])
    stay = {offset for offset, goes in decided.items() if not goes}
    assert offsets(run["after"]) == stay
    assert state(run["after"]) == state(run["before"])
    written = [
        offset for frame in phase(run, "rewrite") if frame["new"] for offset in frame["new"]["offsets"]
    ]
    assert set(written) <= stay


def test_the_walk_goes_from_the_newest_to_the_oldest_with_a_growing_set(log: Log) -> None:
    topic = log.create_topic("t", config=SEALED_WHOLE)
    for key in ("a", "b", "a", None, "c", "a"):
        topic.append(key, "1")
    run = scene.perform(log, "t")
    check(run)
    found = phase(run, "find")[1:]
    assert [frame["offset"] for frame in found] == [5, 4, 3, 2, 1, 0]
    assert [frame["line"] for frame in found] == [
        "find.won",
        "find.won",
        "find.no_key",
        "find.lost",
        "find.won",
        "find.lost",
    ]
    assert [frame["keys_seen"] for frame in found] == [1, 2, 2, 2, 3, 3]
    assert run["frames"][0]["phase"] == "seal"
    commit = phase(run, "commit")[0]
    assert commit["snapshot_id"] == str(topic.history()[-1].id)
    assert commit["first_dirty"] == {"before": 0, "after": 6}


def test_with_first_it_goes_the_other_way(log: Log) -> None:
    topic = log.create_topic("t", config=SEALED_WHOLE | {"compaction.strategy": "first"})
    for key in ("a", "b", "a"):
        topic.append(key, "1")
    run = scene.perform(log, "t")
    check(run)
    assert [(frame["offset"], frame["wins"]) for frame in phase(run, "find")[1:]] == [
        (0, True),
        (1, True),
        (2, False),
    ]


def test_with_versions_a_record_overtakes_another(log: Log) -> None:
    topic = log.create_topic("t", config=SEALED_WHOLE | {"compaction.strategy": "timestamp"})
    now_ms = log.clock.now_ms()
    for age_ms in (5, 9, 1, 3):
        topic.append("a", str(age_ms), timestamp_ms=now_ms - age_ms)
    run = scene.perform(log, "t")
    check(run)
    assert [(frame["wins"], frame["overtakes"]) for frame in phase(run, "find")[1:]] == [
        (True, None),
        (False, None),
        (True, 0),
        (False, None),
    ]
    assert offsets(run["after"]) == {2}


def test_segments_that_lose_nothing_stay_and_others_are_swapped(log: Log) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact", "segment.bytes": 20_000})
    large = random.Random(1).randbytes(4000).hex().encode()
    topic.append_many([NewRecord(key=b"%d" % number, value=large[number:]) for number in range(3)])
    scene.perform(log, "t")
    topic.append("x", "1")
    topic.seal()
    topic.append("x", "2")
    run = scene.perform(log, "t")
    check(run)
    rewritten = phase(run, "rewrite")
    assert [frame["line"] for frame in rewritten].count("rewrite.write") == 1
    (swapped,) = [frame for frame in rewritten if frame["new"]]
    assert swapped["new"]["offsets"][-1] == 4 and 3 not in swapped["new"]["offsets"]


def test_a_rehearsal_changes_nothing_and_is_finished_by_whoever_compacts(log: Log) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    topic.append("a", "1")
    topic.append("a", "2")
    rehearsed = scene.rehearse(log, "t")
    assert (topic.history()[-1].operation, rehearsed["committed"]) != ("compact", None)
    assert scene.finish(log, rehearsed)["committed"] is None
    log.compact(["t"], seal=True, asked_for=True)
    # It may have travelled as JSON meanwhile.
    check(scene.finish(log, json.loads(json.dumps(rehearsed))))


def test_where_there_is_no_run_there_are_no_frames(log: Log) -> None:
    log.create_topic("t", config={"cleanup.policy": "compact"}).append("a", "1")
    scene.perform(log, "t")
    again = scene.perform(log, "t")
    assert (again["frames"], again["due"], again["committed"]) == ([], None, None)
    assert "dirty" in again["not_due"]


def test_too_many_records_are_refused(log: Log) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    topic.append_many([NewRecord(key=b"%d" % number, value=b"") for number in range(scene.MAX_RECORDS + 1)])
    with pytest.raises(InvalidError, match="more than 500 records"):
        scene.rehearse(log, "t")


# ------------------------------------------------------------------------------------------------- the story


def test_the_story_is_told_to_its_end() -> None:
    with Story(ManualClock()) as story:
        told = [story.advance() for _ in story.steps]
        assert [each["step"] for each in told] == list(range(1, len(told) + 1))
        assert json.loads(json.dumps(told)) == told
        first, second = (each["run"] for each in told if "run" in each)
        check(first)
        check(second)
        assert state(second["after"]) == {"alice": "Paris", "bob": "Milan"}
        assert offsets(first["after"]) == {4, 5, 6}
        assert [frame["line"] for frame in phase(first, "later")] == ["tombstone.expiry"]
        assert offsets(second["after"]) == {4, 5}
        with pytest.raises(InvalidError, match="the story has ended"):
            story.advance()


def test_between_the_steps_anything_can_be_done() -> None:
    with Story(ManualClock()) as story:
        story.advance()
        story.produce(("dave", "Kyiv"), (None, "no key"), ("alice", None))
        run = story.compact()["run"]
        check(run)
        assert state(run["after"]) == {"bob": "Rome", "carol": "Lima", "dave": "Kyiv"}
        before_ms = story.clock.now_ms()
        story.move_clock(5000)
        assert story.clock.now_ms() == before_ms + 5000
        with pytest.raises(InvalidError, match="only goes forward"):
            story.move_clock(-1)


def test_a_story_counts_in_the_metrics_of_no_topic_of_a_user() -> None:
    before = exposition(str, None)
    with Story(ManualClock()) as story:
        told = [story.advance() for _ in story.steps]
    assert told[0]["picture"]["topic"] == "users"
    assert {told[-1]["run"][each]["topic"] for each in ("before", "after")} == {"users"}
    assert exposition(str, None) == before
    # It is counted somewhere: without the exposition's filter it would be seen.
    assert STORY_TOPIC in metrics.exposition()


def test_the_folder_goes_with_the_story() -> None:
    with Story() as story:
        folder = story.log.path
        assert folder.exists()
    assert not folder.exists()
