"""Topic names: the legal ones, and the namespace of a name."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lastword.errors import InvalidTopicError, TopicExistsError

DEFAULT_NAMESPACE = "default"
MAX_NAME_LENGTH = 249
INTERNAL_PREFIX = "__lastword_"
"""The prefix of internal topics."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def split_name(name: str) -> tuple[str, str]:
    """Split a legal name into namespace and rest: `db.users` is `users` in `db`, `users` is in `default`."""
    namespace, dot, rest = name.partition(".")
    return (namespace, rest) if dot else (DEFAULT_NAMESPACE, name)


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError unless a topic may have this name."""
    problem = _problem(name)
    if problem is not None:
        shown = name if len(name) <= MAX_NAME_LENGTH else f"{name[:40]}…"
        raise InvalidTopicError(f"topic name {shown!r} is not allowed: {problem}")


def check_new_topic_name(name: str, existing: Iterable[str]) -> None:
    """Check a name for a new topic against the existing ones.

    Names that differ only in case would share their folders on a file system, or in a catalog, that ignores case.
    """
    check_topic_name(name)
    for other in existing:
        if other == name:
            raise TopicExistsError(f"topic {name!r} exists")
        if other.lower() == name.lower():
            raise InvalidTopicError(
                f"topic name {name!r} is not allowed: it differs from the topic {other!r} only in case"
            )


def is_internal(name: str) -> bool:
    """Return whether a topic is internal: users may only read it."""
    # Ignoring case: a user's topic whose name differs from an internal one's only in case would conflict with it.
    return name.lower().startswith(INTERNAL_PREFIX)


def check_not_internal(name: str, act: str) -> None:
    """Raise InvalidTopicError if users may not do this to the topic."""
    if is_internal(name):
        raise InvalidTopicError(
            f"topic {name!r} is internal: Lastword keeps its own data there, so it can't be {act}"
        )


def check_namespace(name: str) -> str | None:
    """Return what is wrong with the name of a namespace, or None."""
    if not _LEGAL.fullmatch(name) or "." in name:
        return "a namespace consists of the characters a-z, A-Z, 0-9, '_' and '-'"
    if name != DEFAULT_NAMESPACE and name.lower() == DEFAULT_NAMESPACE:
        return f"it differs from the namespace {DEFAULT_NAMESPACE!r} only in case"
    return None


def _problem(name: str) -> str | None:
    if not name:
        return "it is empty"
    if len(name) > MAX_NAME_LENGTH:
        return f"it has {len(name)} characters, at most {MAX_NAME_LENGTH} are allowed"
    if name in (".", ".."):
        return "'.' and '..' are folders"
    if not _LEGAL.fullmatch(name):
        return "only the characters a-z, A-Z, 0-9, '.', '_' and '-' are allowed"
    # Every part, not only the first two: if the rest were '.' or '..', it would be another topic's folder.
    if "" in name.split("."):
        return "a part before, between or after its dots is empty"
    namespace, rest = split_name(name)
    if "." in name and namespace.lower() == DEFAULT_NAMESPACE:
        return f"topics of the namespace {DEFAULT_NAMESPACE!r} are named without it: {rest!r}"
    return None
