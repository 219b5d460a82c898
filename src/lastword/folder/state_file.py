"""Small JSON files in a data folder: one way to read and write them, and one rule for damage.

A missing file is None. A file that can't be read is a StorageError. A file with damaged content is a CorruptError, which
names it and the way to resolve that. If its content can be recreated, a damaged file counts as missing instead
(`load_if_whole`).
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
"""The errors that parsing raises for content that Lastword did not write."""


def load(path: Path, parse: Callable[[Any], T], way_out: str) -> T | None:
    """Load a file. `parse` gets the JSON value. `way_out` is the advice for a damaged file."""
    try:
        return parse(json.loads(path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"Can't read {path}: {error.strerror or error}.") from error
    except _WRONG as error:
        raise CorruptError(f"{path} is damaged: {_shown(error)}. {way_out}", path=str(path)) from error


def load_if_whole(path: Path, parse: Callable[[Any], T]) -> T | None:
    """Load a file; None if it is missing or damaged."""
    try:
        return load(path, parse, "It is treated as missing.")
    except CorruptError as error:
        logger.warning("%s", error)
        return None


def parse_if_whole(content: bytes, parse: Callable[[Any], T]) -> T | None:
    """Parse the content of a file that is kept elsewhere, such as in a backup; None if it is damaged."""
    try:
        return parse(json.loads(content))
    except _WRONG:
        return None


def save(path: Path, content: Any, *, indent: int | None = None, synced: bool = True) -> None:
    """Write a file so that, after any crash, the old or the new version is there. Raise OSError if that fails.

    One that is not `synced` may be lost or damaged by a power cut.
    """
    disk.replace_file(path, json.dumps(content, indent=indent).encode(), synced=synced)


def _shown(error: Exception) -> str:
    """Return the text of an error without the content, which may include keys that must be erased."""
    return (
        str(error)
        if isinstance(error, json.JSONDecodeError)
        else f"its content is not as it was written ({type(error).__name__})"
    )
