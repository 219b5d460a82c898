"""Options that the command line and the admin API share: keys in base64, and options that exclude each other."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping

from lastword.errors import InvalidError

Spelled = Callable[[str], str]
"""Spells the name of an option as its user does."""

_COMPANIONS = {
    "state": ("covers the whole topic", ("after_key_base64", "max", "max_bytes", "as_of")),
    "as_of": (
        "shows the past from the log start on",
        ("state", "after_key_base64", "partition", "max", "max_bytes"),
    ),
}
"""For each option of a read that excludes others, the reason, and the options that can be used with it."""


def on_command_line(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def check_together(options: Mapping[str, object], spelled: Spelled = str) -> None:
    """Raise InvalidError if options of a read exclude each other. None, False and empty texts count as not given."""
    given = {name for name, value in options.items() if value or (value == 0 and value is not False)}
    if {"from", "from_time"} <= given:
        raise InvalidError(
            f"{spelled('from')} and {spelled('from_time')} both set the start; give one of them."
        )
    for name, (why, companions) in _COMPANIONS.items():
        if name in given and not given <= {name, *companions}:
            *others, last = [spelled(each) for each in companions if each in options]
            raise InvalidError(
                f"{spelled(name)} {why}; only {', '.join(others)} and {last} can be used with it."
            )


def one_key(key: bytes | None, encoded: str | None, spelled: Spelled = str) -> bytes | None:
    """Return the key that is given as it is or in base64, if any."""
    if encoded is None:
        return key
    if key is not None:
        raise InvalidError(f"{spelled('key')} and {spelled('key_base64')} name two keys; give one of them.")
    return decoded(encoded, spelled("key_base64"))


def decoded(text: str, name: str) -> bytes:
    """Decode an option that is in base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidError(f"{name} {text[:80]!r} is not base64: {error}") from None
