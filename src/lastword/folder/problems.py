"""Errors as data: an error is sent as a name and a message, and received as the same error."""

from __future__ import annotations

from typing import Any

from lastword import errors
from lastword.errors import CorruptError, LastwordError, PartlyAppendedError, UnavailableError

Problem = dict[str, Any]
"""`error`: the name of the class; `message`; for a CorruptError also `path` and `offset`, for a PartlyAppendedError
`appended`: by partition the first and the last offset."""


def to_problem(error: LastwordError) -> Problem:
    """Return an error as data. A class that is not in errors.py is sent as its first parent class that is."""
    problem: Problem = {"error": _public_name(type(error)), "message": str(error)}
    if isinstance(error, CorruptError):
        problem |= {"path": error.path, "offset": error.offset}
    if isinstance(error, PartlyAppendedError):
        problem["appended"] = {str(partition): list(ends) for partition, ends in error.appended.items()}
    return problem


def from_problem(problem: Problem) -> LastwordError:
    """Return the error that `to_problem` was given; an UnavailableError if its name is unknown here."""
    message = str(problem.get("message", "")) or "an error without a message"
    kind = getattr(errors, str(problem.get("error")), None)
    if kind is CorruptError:
        return CorruptError(message, path=str(problem.get("path")), offset=problem.get("offset"))
    if kind is PartlyAppendedError:
        appended = {int(partition): tuple(ends) for partition, ends in problem.get("appended", {}).items()}
        return PartlyAppendedError(message, appended=appended)
    if isinstance(kind, type) and issubclass(kind, LastwordError):
        return kind(message)
    return UnavailableError(message)


def _public_name(kind: type[LastwordError]) -> str:
    for each in kind.__mro__:
        if getattr(errors, each.__name__, None) is each:
            return str(each.__name__)
    return LastwordError.__name__
