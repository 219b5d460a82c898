"""The kinds of values that settings have: how each is read, written, and described to a user.

Kafka's clients send every value as text. Files and Python callers also have numbers and booleans. Each kind takes
all of these. `parse` returns the value that code works with and raises ValueError for anything else. `text` returns
the canonical text of a value, from which `parse` returns the same value again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1

_BOUND_NAMES = {LONG_MAX: "2^63-1", INT_MAX: "2^31-1"}
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Kind(Protocol):
    """One kind of value."""

    @property
    def allowed(self) -> str:
        """The allowed values, as a phrase for the user."""
        ...

    def parse(self, raw: object) -> object: ...

    def text(self, value: object) -> str: ...


@dataclass(frozen=True, slots=True)
class WalSync:
    """When an append is answered: after a sync that waiting appends share, or before it."""

    mode: Literal["group", "interval", "none"]
    interval_ms: int | None = None

    def __str__(self) -> str:
        return self.mode if self.interval_ms is None else f"{self.mode}:{self.interval_ms}"


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """A whole number. A number in `unlimited` is read as None, and None is written as the first of them."""

    low: int = 0
    high: int = LONG_MAX
    unlimited: tuple[int, ...] = ()
    special: Mapping[int, str] = field(default_factory=dict)
    takes_none: bool = False

    @property
    def allowed(self) -> str:
        phrase = f"a whole number from {self.low} to {_BOUND_NAMES.get(self.high, self.high)}"
        unlimited = [f"`{number}`" for number in self.unlimited] + (["`none`"] if self.takes_none else [])
        others = [f"`{number}` ({meaning})" for number, meaning in self.special.items()]
        if unlimited:
            others.append(f"{_either(unlimited)} (no limit)")
        return f"{phrase}; {'; '.join(others)}" if others else phrase

    def parse(self, raw: object) -> int | None:
        text = _plain_text(raw).strip()
        if self.takes_none and text == "none":
            return None
        if not _WHOLE.fullmatch(text):
            raise ValueError(text)
        number = int(text)
        if number in self.unlimited:
            return None
        if number in self.special or self.low <= number <= self.high:
            return number
        raise ValueError(text)

    def text(self, value: object) -> str:
        return str(self.unlimited[0] if value is None else value)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A number from 0 to 1."""

    @property
    def allowed(self) -> str:
        return "a number from 0 to 1"

    def parse(self, raw: object) -> float:
        text = _plain_text(raw).strip()
        if not _DECIMAL.fullmatch(text):
            raise ValueError(text)
        number = float(text)
        if not 0 <= number <= 1:
            raise ValueError(text)
        return abs(number)  # -0.0 is 0.0

    def text(self, value: object) -> str:
        return str(value).removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words, in the case that Kafka gives them."""

    options: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return _either([f"`{option}`" for option in self.options])

    def parse(self, raw: object) -> str:
        text = _plain_text(raw).strip()
        if text not in self.options:
            raise ValueError(text)
        return text

    def text(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Switch:
    """On or off."""

    @property
    def allowed(self) -> str:
        return "`true` or `false`"

    def parse(self, raw: object) -> bool:
        text = _plain_text(raw).strip().lower()
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"

    def text(self, value: object) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class CleanupPolicy:
    """Kafka's list of policies, as text or as a list."""

    @property
    def allowed(self) -> str:
        return "`delete`, `compact` or `compact,delete`"

    def parse(self, raw: object) -> frozenset[str]:
        parts = raw if isinstance(raw, list | tuple) else _plain_text(raw).split(",")
        policies = frozenset(_plain_text(part).strip() for part in parts)
        if not policies or not policies <= {"compact", "delete"}:
            raise ValueError(raw)
        return policies

    def text(self, value: object) -> str:
        assert isinstance(value, frozenset)
        return ",".join(sorted(value))


@dataclass(frozen=True, slots=True)
class Name:
    """Text that is taken as it is."""

    what: str

    @property
    def allowed(self) -> str:
        return f"{self.what}, not empty"

    def parse(self, raw: object) -> str:
        if not isinstance(raw, str) or not raw.strip():
            raise ValueError(raw)
        return raw

    def text(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port. A host with colons is in brackets."""

    @property
    def allowed(self) -> str:
        return "`HOST:PORT`, such as `127.0.0.1:9092` or `[::1]:9092`; port 0 means any free port"

    def parse(self, raw: object) -> str:
        text = _plain_text(raw).strip()
        host, colon, port = text.rpartition(":")
        has_brackets = host.startswith("[") and host.endswith("]")
        if not colon or not host or (":" in host and not has_brackets) or any(map(str.isspace, host)):
            raise ValueError(text)
        if not _WHOLE.fullmatch(port) or not 0 <= int(port) <= 65535:
            raise ValueError(text)
        return text

    def text(self, value: object) -> str:
        return str(value)


def split_address(address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of an address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class WalSyncKind:
    """`group`, `none`, or `interval:` and milliseconds."""

    @property
    def allowed(self) -> str:
        return "`group`, `interval:<ms>` (at least 1) or `none`"

    def parse(self, raw: object) -> WalSync:
        mode, colon, rest = _plain_text(raw).strip().partition(":")
        if mode == "interval":
            interval_ms = WholeNumber(low=1).parse(rest)
            return WalSync(mode="interval", interval_ms=interval_ms)
        if colon:
            raise ValueError(raw)
        if mode == "group":
            return WalSync(mode="group")
        if mode == "none":
            return WalSync(mode="none")
        raise ValueError(raw)

    def text(self, value: object) -> str:
        return str(value)


def _plain_text(raw: object) -> str:
    """Return the text of a value. The text of a boolean is not a number, so that `true` is never taken for 1."""
    if isinstance(raw, str | int | float):
        return str(raw)
    raise ValueError(raw)


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
