"""Topic names: what is legal, and the namespace that a name lies in."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lastword.errors import InvalidTopicError, TopicExistsError

DEFAULT_NAMESPACE = "default"
MAX_NAME_LENGTH = 249
INTERNAL_PREFIX = "__lastword_"
"""Topics of these names are Lastword's own."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def split_name(name: str) -> tuple[str, str]:
    """The namespace of a legal name, and the rest: `db.users` is `users` in `db`, `users` is in `default`."""
    namespace, dot, rest = name.partition(".")
    return (namespace, rest) if dot else (DEFAULT_NAMESPACE, name)


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError unless a topic may have this name."""
    problem = _problem(name)
    if problem is not None:
        shown = name if len(name) <= MAX_NAME_LENGTH else f"{name[:40]}…"
        raise InvalidTopicError(f"topic name {shown!r} is not allowed: {problem}")


def check_new_topic_name(name: str, existing: Iterable[str]) -> None:
    """Check a name for a topic that is to be created next to those that exist.

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
    """Whether a topic is Lastword's own: users may read it, and do nothing else to it."""
    # In any case: a user's topic whose name differs from an internal one's in nothing else would be in its way.
    return name.lower().startswith(INTERNAL_PREFIX)


def check_not_internal(name: str, act: str) -> None:
    """Raise InvalidTopicError if users may not do this to the topic."""
    if is_internal(name):
        raise InvalidTopicError(
            f"topic {name!r} is internal: Lastword keeps its own data there, and it can't be {act}"
        )


def check_namespace(name: str) -> str | None:
    """What is wrong with the name of a namespace, if anything."""
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
    # Every part, not only the first two: a rest of '.' or '..' would be another topic's folder.
    if "" in name.split("."):
        return "a part before, between or after its dots is empty"
    namespace, rest = split_name(name)
    if "." in name and namespace.lower() == DEFAULT_NAMESPACE:
        return f"topics of the namespace {DEFAULT_NAMESPACE!r} are named without it: {rest!r}"
    return None
