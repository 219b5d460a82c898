"""The options of the data source: read once, checked as a whole. Errors name the option and the allowed values."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from lastword.errors import InvalidError
from lastword.reading.timetravel import AsOf, parse_as_of
from lastword.record_json import parse_time

COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
"""The columns of a read without the option `columns`."""
ALL_COLUMNS: Final = (*COLUMNS, "timestamp_type")

DEFAULT_SPLIT_BYTES: Final = 64 << 20

_COMMON: Final = {"path", "topic", "config"}
_READ: Final = _COMMON | {"columns", "start", "start.time", "split.bytes"}
_BATCH: Final = _READ | {"view", "as.of", "end", "end.time"}
_STREAM: Final = _READ | {"max.records.per.trigger", "on.data.loss"}
_WRITE: Final = _COMMON | {"sink", "unit"}
_SPARKS_OWN: Final = {"checkpointlocation", "queryname", "outputmode"}

Offsets = int | Mapping[int, int] | Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A topic in a data folder."""

    path: str
    topic: str
    config: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The beginning or end of a read: offsets, or the first record that is not older than a time."""

    offsets: Offsets | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read, batch or streaming."""

    where: Where
    columns: tuple[str, ...]
    start: Bound
    end: Bound
    split_bytes: int
    view: Literal["records", "state"] = "records"
    as_of: AsOf | None = None
    max_records_per_trigger: int | None = None
    on_data_loss: Literal["fail", "skip"] = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write. `sink` and `unit` make a batch write repeatable."""

    where: Where
    sink: str | None
    unit: int | None


def batch_options(given: Mapping[str, str]) -> ReadOptions:
    found = _known(given, _BATCH, "a batch read")
    view = _one_of(found, "view", ("records", "state"), "records")
    as_of = parse_as_of(found["as.of"], "option 'as.of'") if "as.of" in found else None
    start, end = _bound(found, "start"), _bound(found, "end")
    bounded = [name for name in ("start", "start.time", "end", "end.time") if name in found]
    if bounded and (view == "state" or as_of is not None):
        with_what = "view is state" if view == "state" else "as.of is given"
        raise InvalidError(
            f"option {bounded[0]!r} can't be used if {with_what}: such a read begins at the log start"
        )
    return ReadOptions(
        where=_where(found),
        columns=_columns(found),
        start=start,
        end=end,
        split_bytes=_positive(found, "split.bytes") or DEFAULT_SPLIT_BYTES,
        view=cast(Literal["records", "state"], view),
        as_of=as_of,
    )


def stream_options(given: Mapping[str, str]) -> ReadOptions:
    found = _known(given, _STREAM, "a streaming read")
    return ReadOptions(
        where=_where(found),
        columns=_columns(found),
        start=_bound(found, "start"),
        end=Bound(),
        split_bytes=_positive(found, "split.bytes") or DEFAULT_SPLIT_BYTES,
        max_records_per_trigger=_positive(found, "max.records.per.trigger"),
        on_data_loss=cast(Literal["fail", "skip"], _one_of(found, "on.data.loss", ("fail", "skip"), "fail")),
    )


def columns_of(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns of a read, batch or streaming; Spark says only later which one it is."""
    found = _known(given, _BATCH | _STREAM, "a read")
    _where(found)
    return _columns(found)


def write_options(given: Mapping[str, str]) -> WriteOptions:
    found = _known(given, _WRITE, "a write")
    unit = _number(found, "unit", least=0)
    if (unit is None) != ("sink" not in found):
        raise InvalidError(
            "options 'sink' and 'unit' belong together: the name of the writer, and the number of this write"
        )
    return WriteOptions(where=_where(found), sink=found.get("sink"), unit=unit)


def _known(given: Mapping[str, str], allowed: Collection[str], what: str) -> dict[str, str]:
    found = {name.lower(): value for name, value in given.items()}
    for name in found:
        if name not in allowed and name not in _SPARKS_OWN and not name.startswith(("spark.", "_")):
            raise InvalidError(
                f"option {name!r} is unknown for {what}; allowed: {', '.join(sorted(allowed))}"
            )
    return found


def _where(found: Mapping[str, str]) -> Where:
    for name, example in (("path", "the data folder"), ("topic", "the topic's name")):
        if not found.get(name):
            raise InvalidError(f"option {name!r} is missing: {example}")
    return Where(path=found["path"], topic=found["topic"], config=found.get("config"))


def _columns(found: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" not in found:
        return COLUMNS
    names = tuple(name.strip() for name in found["columns"].split(","))
    for name in names:
        if name not in ALL_COLUMNS or names.count(name) > 1:
            raise InvalidError(
                f"option 'columns' is {found['columns']!r}; allowed: some of {', '.join(ALL_COLUMNS)}, each once, "
                f"separated by commas"
            )
    return names


def _bound(found: Mapping[str, str], name: str) -> Bound:
    by_time = f"{name}.time"
    if name in found and by_time in found:
        raise InvalidError(f"options {name!r} and {by_time!r} are both given; give one of them")
    if by_time in found:
        try:
            return Bound(time_ms=parse_time(found[by_time]))
        except InvalidError as error:
            raise InvalidError(f"option {by_time!r}: {error}") from None
    return Bound(offsets=_offsets(name, found[name])) if name in found else Bound()


def _offsets(name: str, text: str) -> Offsets:
    if text in ("earliest", "latest"):
        return cast(Literal["earliest", "latest"], text)
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        parsed = json.loads(text)
        offsets = {int(partition): offset for partition, offset in parsed.items()}
        if all(type(offset) is int and offset >= 0 for offset in offsets.values()):
            return offsets
    except (ValueError, AttributeError):
        pass
    raise InvalidError(
        f"option {name!r} is {text!r}; allowed: earliest, latest, an offset for every partition such as 1000, or one "
        f'for some of them such as {{"0": 1000, "1": 250}}'
    )


def _one_of(found: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = found.get(name, default).lower()
    if value not in allowed:
        raise InvalidError(f"option {name!r} is {found[name]!r}; allowed: {', '.join(allowed)}")
    return value


def _positive(found: Mapping[str, str], name: str) -> int | None:
    return _number(found, name, least=1)


def _number(found: Mapping[str, str], name: str, *, least: int) -> int | None:
    if name not in found:
        return None
    text = found[name]
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise InvalidError(f"option {name!r} is {text!r}; allowed: a whole number of at least {least}")
    return int(text)
