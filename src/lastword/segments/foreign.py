"""Turns foreign errors into ours, in one place for everything in this folder."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pydantic
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchIdentifierError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    RESTError,
    SignError,
    ValidationError,
    ValidationException,
    WaitingForLockException,
)
from sqlalchemy.exc import SQLAlchemyError

from lastword.errors import ConflictError, CorruptError, StorageError, UnknownTopicError
from lastword.segments.model import SegmentGoneError

CONFLICTS = (CommitFailedException, ValidationException, WaitingForLockException)
"""Raised by a catalog when a commit failed and nothing has changed."""

_UNKNOWN = (NoSuchTableError, NoSuchNamespaceError, NoSuchIdentifierError)

FAILURES = (
    SQLAlchemyError,
    RESTError,
    OAuthError,
    SignError,
    NoSuchPropertyException,
    NotInstalledError,
    pa.ArrowException,
    OSError,
)
"""Raised when the outside world failed. After one of them, a commit may or may not have been made."""

_UNDECODABLE = (
    # pydantic's and UnicodeDecodeError are ValueErrors, too.
    ValueError,
    ValidationError,
    LookupError,
    TypeError,
    AssertionError,
    EOFError,
    MemoryError,
    OverflowError,
    SystemError,
    struct.error,
    zlib.error,
)


@contextmanager
def mapped(doing: str, path: str = "") -> Iterator[None]:
    """Run the block. Turn errors of pyiceberg, pyarrow, SQLAlchemy and the disk into ours."""
    where = f" ({path})" if path else ""
    try:
        yield
    except FileNotFoundError as error:
        raise SegmentGoneError(f"{doing}: a file is no longer there{where}: {error}", path=path) from error
    except CONFLICTS as error:
        raise ConflictError(f"{doing}: the table changed in the meantime{where}: {error}") from error
    except _UNKNOWN as error:
        raise UnknownTopicError(f"{doing}: there is no such topic{where}") from error
    except FAILURES as error:
        raise StorageError(f"{doing} failed{where}: {error}") from error


@contextmanager
def decoding(path: str) -> Iterator[None]:
    """Run the block, which reads a metadata file, manifest list or manifest. Raise CorruptError if it is damaged."""
    try:
        yield
    except _UNDECODABLE as error:
        raise CorruptError(
            f"{path} is damaged: {_reason(error)}. Restore the file from a backup; `lastword topic repair` shows "
            "whether an older metadata file of the table can be used.",
            path=path,
        ) from error


def _reason(error: BaseException) -> str:
    """Return the reason in one line: pydantic, which pyiceberg uses, gives it in several, with links."""
    pydantics = error.__cause__ if isinstance(error, ValidationError) else error
    if isinstance(pydantics, pydantic.ValidationError):
        first = pydantics.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(each) for each in first["loc"])
        return f"{where}: {first['msg']}" if where else first["msg"]
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(".")
