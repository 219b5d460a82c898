"""Options of the data source: what they mean, and what is said about a wrong one."""

from __future__ import annotations

import pytest

from lastword.errors import InvalidError
from lastword.reading.timetravel import AsOf
from lastword.spark.options import (
    COLUMNS,
    Bound,
    batch_options,
    columns_of,
    stream_options,
    write_options,
)

HERE = {"path": "/data", "topic": "users"}


def test_what_holds_without_options() -> None:
    found = batch_options(HERE)
    assert (found.view, found.columns, found.as_of) == ("records", COLUMNS, None)
    assert found.start == found.end == Bound()
    assert stream_options(HERE).on_data_loss == "fail"
    assert write_options(HERE).sink is None


def test_names_are_known_in_any_case_as_spark_gives_them() -> None:
    assert batch_options({"PATH": "/data", "Topic": "users", "VIEW": "State"}).view == "state"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("12", AsOf(offset=12)),
        ("snapshot:12", AsOf(snapshot_id=12)),
        ("1970-01-01T00:00:01Z", AsOf(time_ms=1000)),
    ],
)
def test_as_of(text: str, meant: AsOf) -> None:
    assert batch_options(HERE | {"as.of": text}).as_of == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [("earliest", "earliest"), ("latest", "latest"), ("7", 7), ('{"0": 3, "2": 4}', {0: 3, 2: 4})],
)
def test_start_and_end(text: str, meant: object) -> None:
    found = batch_options(HERE | {"start": text, "end": text})
    assert found.start.offsets == meant
    assert found.end.offsets == meant


def test_times() -> None:
    found = batch_options(HERE | {"start.time": "1970-01-01T00:00:02", "end.time": "5000"})
    assert (found.start.time_ms, found.end.time_ms) == (2000, 5000)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "users"}, "option 'path' is missing"),
        ({"path": "/data"}, "option 'topic' is missing"),
        (HERE | {"viev": "state"}, "option 'viev' is unknown for a batch read; allowed: as.of, columns"),
        (HERE | {"view": "all"}, "option 'view' is 'all'; allowed: records, state"),
        (HERE | {"as.of": "yesterday"}, "option 'as.of' is 'yesterday'; allowed: an offset"),
        (HERE | {"as.of": "snapshot:x"}, "option 'as.of' is 'snapshot:x'; a snapshot is a number"),
        (HERE | {"start": "-1"}, "option 'start' is '-1'; allowed: earliest, latest"),
        (HERE | {"end": '{"0": "x"}'}, "option 'end'"),
        (HERE | {"start.time": "soon"}, "option 'start.time': 'soon' is not a time"),
        (HERE | {"start": "1", "start.time": "2"}, "options 'start' and 'start.time' are both given"),
        (HERE | {"view": "state", "start": "1"}, "option 'start' can't be used if view is state"),
        (HERE | {"as.of": "1", "end": "1"}, "option 'end' can't be used if as.of is given"),
        (HERE | {"columns": "key,colour"}, "option 'columns' is 'key,colour'; allowed: some of partition"),
        (HERE | {"columns": "key,key"}, "each once"),
        (HERE | {"split.bytes": "0"}, "option 'split.bytes' is '0'; allowed: a whole number of at least 1"),
        (HERE | {"max.records.per.trigger": "5"}, "unknown for a batch read"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidError) as raised:
        batch_options(options)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on.data.loss": "ignore"}, "option 'on.data.loss' is 'ignore'; allowed: fail, skip"),
        ({"max.records.per.trigger": "many"}, "option 'max.records.per.trigger' is 'many'"),
        ({"view": "state"}, "option 'view' is unknown for a streaming read"),
    ],
)
def test_wrong_options_of_a_streaming_read(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidError) as raised:
        stream_options(HERE | options)
    assert said in str(raised.value)


def test_wrong_options_of_a_write() -> None:
    with pytest.raises(InvalidError, match="'sink' and 'unit' belong together"):
        write_options(HERE | {"sink": "nightly"})
    with pytest.raises(InvalidError, match="option 'unit' is 'x'"):
        write_options(HERE | {"sink": "nightly", "unit": "x"})
    assert write_options(HERE | {"sink": "nightly", "unit": "0"}).unit == 0


def test_options_of_spark_itself_are_none_of_ours() -> None:
    found = columns_of(
        HERE | {"checkpointLocation": "/tmp/x", "spark.anything": "1", "columns": "key, value"}
    )
    assert found == ("key", "value")
