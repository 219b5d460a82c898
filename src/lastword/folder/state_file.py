"""Small JSON files in a data folder: one way to read and write them, and one rule for damage.

A file that is not there is None, and one that can't be read is a StorageError. One that is there and is not what was
written is a CorruptError, which names it and says what to do; or, where everything in it can be found out again, it
counts as not there (`load_if_whole`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from lastword.errors import CorruptError, StorageError
from lastword.folder import disk

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WRONG: Final = (ValueError, LookupError, TypeError, AttributeError)
"""What the reading of content raises that nobody wrote like that."""


def load(path: Path, parse: Callable[[Any], T], way_out: str) -> T | None:
    """What a file says. `parse` gets the JSON value; `way_out` says what to do about a file that is damaged."""
    try:
        return parse(json.loads(path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"Can't read {path}: {error.strerror or error}.") from error
    except _WRONG as error:
        raise CorruptError(f"{path} is damaged: {_shown(error)}. {way_out}", path=str(path)) from error


def load_if_whole(path: Path, parse: Callable[[Any], T]) -> T | None:
    """What a file says; None also if it is damaged."""
    try:
        return load(path, parse, "It counts as not there.")
    except CorruptError as error:
        logger.warning("%s", error)
        return None


def save(path: Path, content: Any, *, indent: int | None = None) -> None:
    """Write a file so that, after any crash, it is the old one or the new one. OSError if it can't be written."""
    disk.replace_file(path, json.dumps(content, indent=indent).encode())


def _shown(error: Exception) -> str:
    """Without anything of the content: it may be keys that are to be erased."""
    return (
        str(error)
        if isinstance(error, json.JSONDecodeError)
        else f"its content is not as it was written ({type(error).__name__})"
    )
