"""The options of one connector, as given in the file: taken one by one, each checked, and none left over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lastword.config.keys import closest
from lastword.config.values import Choice, Kind, Switch, WholeNumber
from lastword.errors import InvalidConfigError

_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Given:
    """A value in the file, and its place."""

    value: object
    where: str


@dataclass(slots=True)
class Options:
    """The options below `config` of a source. A connector takes those that it knows, then calls `finish`."""

    path: str
    """The prefix of the keys: `sources.users.config`."""
    where: str
    """The place of the source in the file, for errors about missing options."""
    given: Mapping[str, Given] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def text(self, key: str, default: str | None = None, *, secret: bool = False) -> str | None:
        """Return a string; a secret one is not shown in errors."""
        raw = self._take(key)
        if raw is _MISSING:
            return default
        if not isinstance(raw, str) or not raw.strip():
            shown = "is not a string" if secret else self._shown(raw)
            raise self.invalid(key, f"{shown}; allowed: a non-empty string")
        return raw

    def required(self, key: str, what: str, *, secret: bool = False) -> str:
        found = self.text(key, secret=secret)
        if found is None:
            raise InvalidConfigError(f"{self.where}: {self.path}.{key} is missing; it is {what}")
        return found

    def texts(self, key: str) -> list[str] | None:
        """Return a list of strings; a single string is a list of one."""
        raw = self._take(key)
        if raw is _MISSING:
            return None
        found = [raw] if isinstance(raw, str) else raw
        if (
            not isinstance(found, list)
            or not found
            or not all(isinstance(e, str) and e.strip() for e in found)
        ):
            raise self.invalid(key, f"{self._shown(raw)}; allowed: a string, or a list of strings")
        return list(found)

    def number(self, key: str, default: int, *, low: int = 0, high: int = 2**63 - 1) -> int:
        found = self._kind(key, WholeNumber(low=low, high=high))
        return default if found is None else int(str(found))

    def switch(self, key: str, default: bool) -> bool:
        found = self._kind(key, Switch())
        return default if found is None else bool(found)

    def choice(self, key: str, default: str, allowed: Iterable[str]) -> str:
        found = self._kind(key, Choice(tuple(allowed)))
        return default if found is None else str(found)

    def group(self, key: str) -> dict[str, str]:
        """Return all options below a key, as strings."""
        found: dict[str, str] = {}
        for each, given in self.given.items():
            if each.startswith(f"{key}."):
                self._taken.add(each)
                if not isinstance(given.value, str | int | float):
                    raise self.invalid(each, f"{self._shown(given.value)}; allowed: a string or a number")
                found[each.removeprefix(f"{key}.")] = str(given.value)
        return found

    def finish(self) -> None:
        """Raise InvalidConfigError if an option was not taken."""
        for key, given in self.given.items():
            if key not in self._taken:
                meant = closest(key, self._known)
                hint = f"; did you mean {meant!r}?" if meant else ""
                allowed = ", ".join(sorted(self._known)) or "none"
                raise InvalidConfigError(
                    f"{given.where}: {self.path}.{key} is not an option of this connector{hint} "
                    f"(its options: {allowed})"
                )

    def invalid(self, key: str, what: str) -> InvalidConfigError:
        where = self.given[key].where if key in self.given else self.where
        return InvalidConfigError(f"{where}: {self.path}.{key} {what}")

    _known: set[str] = field(default_factory=set)

    def _take(self, key: str) -> object:
        self._known.add(key)
        if key not in self.given:
            return _MISSING
        self._taken.add(key)
        return self.given[key].value

    def _kind(self, key: str, kind: Kind) -> object | None:
        raw = self._take(key)
        if raw is _MISSING:
            return None
        try:
            return kind.parse(raw)
        except ValueError:
            raise self.invalid(key, f"{self._shown(raw)}; allowed: {kind.allowed}") from None

    @staticmethod
    def _shown(raw: object) -> str:
        if raw is None:
            return "has no value"
        if isinstance(raw, dict):
            return "is a group of options"
        return f"is {str(raw)[:80]!r}"
