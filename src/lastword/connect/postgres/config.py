"""The options of `postgres-cdc`, checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from lastword.connect.options import Options
from lastword.connect.postgres.database import Table, is_dsn
from lastword.connect.protocol import Context
from lastword.errors import InvalidConfigError

_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
_PLACEHOLDER = re.compile(r"\{(.*?)\}")
_NOT_IN_TOPICS = re.compile(r"[^a-zA-Z0-9._-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PgConfig:
    """The settings of one source in the file."""

    source: str
    dsn: str
    tables: tuple[str, ...]
    key: tuple[str, ...]
    publication: str
    slot: str
    creates: bool
    """Whether the publication and the slot may be created."""
    reads_rows: bool
    is_envelope: bool
    fills: bool
    truncates: bool
    lag_warn_bytes: int
    pattern: str
    """The pattern of the topic names."""

    @classmethod
    def parse(cls, options: Options, context: Context) -> Self:
        dsn = options.required("dsn", "the database, as a libpq connection string", secret=True)
        if not is_dsn(dsn):
            # Neither the string nor libpq's error is shown: they may contain a password.
            raise options.invalid(
                "dsn", "is not a libpq connection string, such as `host=db dbname=shop user=lastword`"
            )
        tables = _tables(options)
        key = _names(options.texts("primary_key"))
        default = "lastword_" + re.sub(r"[^a-z0-9_]", "_", context.source.lower())
        publication = options.text("publication", default) or default
        slot = options.text("slot", default) or default
        creates = options.switch("create", False)
        snapshot = options.choice("snapshot", "initial", ("initial", "never"))
        form = options.choice("format", "row", ("row", "debezium"))
        toast = options.choice("toast", "fill", ("fill", "mark"))
        truncate = options.choice("truncate", "tombstones", ("tombstones", "ignore"))
        lag_warn_bytes = options.number("slot_lag_warn_bytes", 1 << 30, low=1)
        options.finish()
        if not _SLOT_NAME.fullmatch(slot):
            raise options.invalid("slot", f"is {slot!r}; allowed: 1 to 63 characters from a-z, 0-9 and '_'")
        if key and len(tables) > 1:
            raise options.invalid(
                "primary_key", "can be given for one table only; each of several has its own"
            )
        return cls(
            source=context.source,
            dsn=dsn,
            tables=tuple(tables),
            key=tuple(key),
            publication=publication,
            slot=slot,
            creates=creates,
            reads_rows=snapshot == "initial",
            is_envelope=form == "debezium",
            fills=toast == "fill",
            truncates=truncate == "tombstones",
            lag_warn_bytes=lag_warn_bytes,
            pattern=_pattern(options, context, len(tables)),
        )

    def topic(self, table: Table) -> str:
        def legal(name: str) -> str:
            return _NOT_IN_TOPICS.sub("_", name)

        return self.pattern.replace("{schema}", legal(table.schema)).replace("{table}", legal(table.name))


def _tables(options: Options) -> list[str]:
    one, several = options.text("table"), options.texts("tables")
    if (one is None) == (several is None):
        what = "both are given" if one is not None else "neither is given"
        raise InvalidConfigError(f"{options.where}: {options.path}: give either table or tables; {what}")
    return _names(several) or [one or ""]


def _names(given: Sequence[str] | None) -> list[str]:
    """Return the names, split at commas that are not within double quotes."""
    if given is None:
        return []
    return [each.strip() for text in given for each in re.split(r',(?=(?:[^"]*"[^"]*")*[^"]*$)', text)]


def _pattern(options: Options, context: Context, tables: int) -> str:
    if context.topic is None:
        raise InvalidConfigError(f"{options.where}: sources.{context.source}.topic is missing")
    for found in _PLACEHOLDER.findall(context.topic):
        if found not in ("schema", "table"):
            raise InvalidConfigError(
                f"{options.where}: sources.{context.source}.topic is {context.topic!r}; allowed in braces: {{schema}} "
                f"and {{table}}"
            )
    if tables > 1 and "{table}" not in context.topic:
        raise InvalidConfigError(
            f"{options.where}: sources.{context.source}.topic is {context.topic!r}; with several tables each needs its "
            f"own topic: put {{table}} into the name, such as db.{{table}}"
        )
    return context.topic
