"""`IDENTITY` in the data folder: which folder this is, and where it lives.

Iceberg's paths are absolute, so the tables of a folder that was copied name the files of the original. Whoever opens
a folder first compares the place in its identity with where the folder is now:

- the same place, also by another name (a symlink, a bind mount): it is *home*;
- another one, and a folder with the same id is still at the old place: it is a *copy*, and nobody may use it before
  `lastword relocate` has made it a folder of its own;
- another one, and nothing of that id is at the old place: it was *moved*, and has to be relocated.

The *incarnation* counts the openings for writing of a folder whose catalog or warehouse is shared (ownership.py).
A relocation notes the id that a copy will have before it changes anything else, so that one that was killed goes on
with the same id.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from lastword.clock import new_uuid
from lastword.errors import CorruptError, ForeignFolderError, StorageError
from lastword.folder import state_file
from lastword.folder.paths import IDENTITY_FILE


class Standing(StrEnum):
    """How a folder stands to its identity."""

    UNKNOWN = "unknown"
    HOME = "home"
    MOVED = "moved"
    COPY = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a data folder is: its id, the real path that it lives at, and its incarnation."""

    id: str
    path: str
    incarnation: int = 0
    token: str = ""
    """Tells this incarnation from one of the same number that a clone of the folder has taken."""
    becoming: str | None = None
    """The id that a copy at `becoming_path` gets when its relocation is done."""
    becoming_path: str | None = None


def new_identity(folder: Path) -> Identity:
    """An identity that no folder has had, for a folder that lives where it is."""
    return Identity(id=new_uuid().hex, path=str(folder.resolve()))


def load(folder: Path) -> Identity | None:
    """The identity that is noted in a folder; None if it has none, as one of the first version."""
    return state_file.load(
        folder / IDENTITY_FILE,
        lambda saved: Identity(**saved),
        f"So it is not known whether {folder} is a copy of another folder. If it is none, remove the file and open the "
        f"folder for writing: it gets a new identity.",
    )


def save(folder: Path, identity: Identity) -> Identity:
    """Note an identity so that it outlasts a power cut."""
    path = folder / IDENTITY_FILE
    try:
        state_file.save(path, asdict(identity), indent=1)
    except OSError as error:
        raise StorageError(f"Can't write {path}: {error.strerror or error}.") from error
    return identity


def standing(folder: Path, identity: Identity | None) -> Standing:
    """How a folder stands to an identity that is noted in it."""
    if identity is None:
        return Standing.UNKNOWN
    original = Path(identity.path)
    if original == folder.resolve() or is_same_place(original, folder):
        return Standing.HOME
    try:
        there = load(original)
    except (CorruptError, StorageError):
        # Something is there that can't be read: taking it for the original can be put right, the opposite can't.
        return Standing.COPY
    return Standing.COPY if there is not None and there.id == identity.id else Standing.MOVED


def is_same_place(one: Path, other: Path) -> bool:
    """Whether two paths lead to the same folder, whatever they are called."""
    try:
        return os.path.samestat(one.stat(), other.stat())
    except OSError:
        return False


def refuse_copy(folder: Path) -> None:
    """Raise if a folder is a copy of one that is still there."""
    identity = load(folder)
    if identity is not None and standing(folder, identity) is Standing.COPY:
        raise copy_error(folder, identity.path)


def copy_error(folder: Path, original: str) -> ForeignFolderError:
    return ForeignFolderError(
        f"{folder} is a copy of {original}, which is still there: its tables name the files of {original}. "
        f"`lastword relocate --data {folder}` makes it a folder of its own; until then it is neither read nor changed."
    )


def moved_error(folder: Path, original: str) -> ForeignFolderError:
    return ForeignFolderError(
        f"{folder} has been moved here from {original}, and its tables still name that place. "
        f"`lastword relocate --data {folder}` rewrites them, or open it once for writing."
    )


def relocated(folder: Path, identity: Identity, *, new_id: str | None) -> Identity:
    """The identity that a folder has after its relocation; with a new id it is another folder than before."""
    here = str(folder.resolve())
    if new_id is None:
        return replace(identity, path=here, becoming=None, becoming_path=None)
    return Identity(id=new_id, path=here)
