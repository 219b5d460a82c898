"""The parts of change capture that need no database."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.connect.postgres import pgoutput, values
from lastword.connect.postgres.pgoutput import UNCHANGED, Delete, Insert, Relation, Truncate, Update
from lastword.connect.postgres.position import (
    Epoch,
    Filter,
    PgPosition,
    Snapshot,
    TableProgress,
    lsn_text,
    parse_lsn,
)
from lastword.connect.postgres.rows import slices
from lastword.connect.postgres.snapshot import row_of
from lastword.connect.postgres.values import Type, converter, reverse
from lastword.errors import CorruptError


def types(oid: int) -> Type:
    return {1009: Type(1009, element=25), 1007: Type(1007, element=23), 90000: Type(90000, base=1007)}.get(
        oid, Type(oid)
    )


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_texts_become_json(text: str) -> None:
    assert json.loads(values.text(text.encode())) == text


def array_text(items: list[object]) -> str:
    """As PostgreSQL writes an array of texts."""
    parts = []
    for item in items:
        if item is None:
            parts.append("NULL")
        elif isinstance(item, list):
            parts.append(array_text(item))
        else:
            escaped = str(item).replace("\\", "\\\\").replace('"', '\\"')
            parts.append(f'"{escaped}"')
    return "{" + ",".join(parts) + "}"


TEXTS = st.none() | st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(st.lists(TEXTS) | st.lists(st.lists(TEXTS, min_size=2, max_size=2)))
def test_arrays_become_lists(items: list[object]) -> None:
    assert json.loads(converter(1009, types)(array_text(items).encode())) == items


def test_a_domain_is_what_is_below_it() -> None:
    assert converter(90000, types)(b"{1,NULL,{2,3}}") == b"[1,null,[2,3]]"


@pytest.mark.parametrize(
    ("oid", "text", "found"),
    [
        (1184, "2026-01-01 00:00:00.5+00", "2026-01-01T00:00:00.5Z"),
        (1184, "0044-03-15 00:00:00+00 BC", "0044-03-15T00:00:00Z BC"),
        (1184, "-infinity", "-infinity"),
        (1114, "2026-01-01 00:00:00", "2026-01-01T00:00:00"),
        (701, "-Infinity", "-Infinity"),
        (701, "1e+20", 1e20),
        (17, "\\x", ""),
    ],
)
def test_values(oid: int, text: str, found: object) -> None:
    assert json.loads(converter(oid, types)(text.encode())) == found


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (16, "t"),
        (16, "f"),
        (17, "\\x"),
        (17, "\\x00ff10"),
        (20, "-9223372036854775808"),
        (700, "1.5"),
        (701, "-Infinity"),
        (701, "NaN"),
        (701, "1e+20"),
        (701, "-0"),
        (1700, "1.50"),
        (25, 'tab\t "q" back\\slash \n é ☃ T Z'),
        (1114, "2026-01-01 00:00:00.5"),
        (1114, "infinity"),
        (1114, "0044-03-15 00:00:00 BC"),
        (1184, "2026-01-01 00:00:00.5+00"),
        (1184, "0044-03-15 00:00:00+00 BC"),
        (1184, "-infinity"),
        (3802, '{"a": [1.10, null]}'),
        (1007, "{1,NULL,3}"),
        (90000, "{{1,2},{3,4}}"),
        (1009, r'{{plain,"a b"},{"NULL","\"\\"},{"",NULL},{"x,y","{}"}}'),
        (1009, "{}"),
    ],
)
def test_the_json_of_a_value_leads_back_to_its_text(oid: int, text: str) -> None:
    assert reverse(oid, types)(converter(oid, types)(text.encode())) == text.encode()


@pytest.mark.parametrize(
    ("oid", "raw"), [(23, '"x"'), (25, "1"), (17, '"no base64"'), (1114, "5"), (16, "1")]
)
def test_what_is_no_json_of_a_type_is_told(oid: int, raw: str) -> None:
    with pytest.raises(ValueError):
        reverse(oid, types)(raw.encode())


# -------------------------------------------------------------------------------------------------- messages


def tuple_data(*items: object) -> bytes:
    data = struct.pack(">H", len(items))
    for item in items:
        if item is None:
            data += b"n"
        elif item is UNCHANGED:
            data += b"u"
        else:
            assert isinstance(item, bytes)
            data += b"t" + struct.pack(">I", len(item)) + item
    return data


def test_messages() -> None:
    head = struct.pack(">I", 7)
    row = tuple_data(b"1", None, UNCHANGED, b"")
    found = [b"1", None, UNCHANGED, b""]
    assert pgoutput.parse(b"I" + head + b"N" + row) == Insert(7, found)
    assert pgoutput.parse(b"U" + head + b"N" + row) == Update(7, None, None, found)
    assert pgoutput.parse(b"U" + head + b"K" + tuple_data(b"2") + b"N" + row) == Update(
        7, [b"2"], None, found
    )
    assert pgoutput.parse(b"U" + head + b"O" + tuple_data(b"2") + b"N" + row) == Update(
        7, None, [b"2"], found
    )
    assert pgoutput.parse(b"D" + head + b"K" + tuple_data(b"2")) == Delete(7, [b"2"], None)
    assert pgoutput.parse(b"T" + struct.pack(">IBII", 2, 0, 7, 8)) == Truncate((7, 8))
    relation = pgoutput.parse(
        b"R" + head + b"public\0users\0d" + struct.pack(">H", 1) + b"\1id\0" + struct.pack(">Ii", 23, -1)
    )
    assert (
        isinstance(relation, Relation) and relation.columns[0].is_key and relation.columns[0].type_oid == 23
    )
    assert pgoutput.parse(b"Yxxx") is None
    with pytest.raises(CorruptError, match="pgoutput message that can't be read"):
        pgoutput.parse(b"I" + head + b"N" + row[:-3] + b"x")


CELLS = st.none() | st.binary().filter(lambda each: b"\0" not in each)


@given(st.lists(CELLS, min_size=1))
def test_rows_of_copy(cells: list[bytes | None]) -> None:
    escapes = {
        b"\\": b"\\\\",
        b"\t": b"\\t",
        b"\n": b"\\n",
        b"\r": b"\\r",
        b"\b": b"\\b",
        b"\f": b"\\f",
        b"\v": b"\\v",
    }
    line = b"\t".join(
        b"\\N"
        if cell is None
        else b"".join(escapes.get(cell[i : i + 1], cell[i : i + 1]) for i in range(len(cell)))
        for cell in cells
    )
    assert row_of(line + b"\n") == cells


# ------------------------------------------------------------------------------------------------- positions


def test_a_snapshot_knows_what_it_has_seen() -> None:
    snapshot = Snapshot.parse("100:110:103,105")
    assert [xid for xid in range(95, 115) if snapshot.has_seen(xid)] == [
        *range(95, 103),
        104,
        106,
        107,
        108,
        109,
    ]


def test_transaction_numbers_that_have_wrapped_around() -> None:
    base = 5 << 32
    snapshot = Snapshot.parse(f"{base - 3}:{base + 3}:{base + 1}")
    assert snapshot.has_seen((base - 4) & 0xFFFFFFFF) and snapshot.has_seen(0) and snapshot.has_seen(2)
    assert not snapshot.has_seen(1) and not snapshot.has_seen(3)
    late = Snapshot.parse(f"{base + 5}:{base + 5}:")
    assert late.has_seen(0xFFFFFFFE) and not late.has_seen(7)


def test_each_key_belongs_to_the_last_epoch_that_began_before_it() -> None:
    filtered = Filter(
        [
            Epoch("10:10:", 0, {"t": None, "u": None}),
            Epoch("20:20:", 0, {"t": ["5"], "u": None}),
            Epoch("30:30:", 0, {"t": ["8"]}),
        ]
    )

    def seen(table: str, key: int) -> int:
        """Up to which transaction the row of a key has been read."""
        return max(xid for xid in range(40) if filtered.has_seen(xid, table, (key,), [True])) + 1

    assert [seen("t", key) for key in (1, 5, 6, 8, 9, 10)] == [10, 10, 20, 20, 30, 30]
    assert seen("u", 1) == 20
    assert not filtered.has_seen(1, "other", (1,), [True])


@given(
    st.builds(
        PgPosition,
        lsn=st.integers(0, 2**64 - 1),
        commit_lsn=st.integers(0, 2**64 - 1),
        open_lsn=st.just(77),
        open_index=st.integers(1, 10),
        tables=st.dictionaries(
            st.text(),
            st.builds(TableProgress, st.integers(0), st.none() | st.lists(st.text()), st.booleans()),
        ),
        epochs=st.lists(
            st.builds(
                Epoch,
                st.text(),
                st.integers(0, 2**64 - 1),
                st.dictionaries(st.text(), st.none() | st.lists(st.text(), max_size=4), max_size=4),
            )
        ),
    )
)
def test_positions_survive_json(position: PgPosition) -> None:
    assert PgPosition.from_json(json.loads(json.dumps(position.to_json()))) == position


@given(st.integers(0, 2**64 - 1))
def test_lsns(lsn: int) -> None:
    assert parse_lsn(lsn_text(lsn)) == lsn


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda e: st.lists(e) | st.dictionaries(st.text(), e),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSONS, max_size=4))
def test_fields_are_cut_out_as_they_are(fields: dict[str, object]) -> None:
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    found = slices(text, fields)
    assert {name: json.loads(each) for name, each in found.items()} == fields


def test_digits_of_a_field_stay() -> None:
    assert slices('{"a":1.10,"b":[1.100, 2],"c":1}', ["a", "b"]) == {"a": "1.10", "b": "[1.100, 2]"}
