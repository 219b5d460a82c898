"""`IDENTITY` in the data folder: the id of the folder, and its path.

Iceberg's paths are absolute, so the tables of a copied folder name the files of the original. Before a process uses a
folder, it compares the path in the identity with the folder's path now:

- the same place, possibly under another name (a symlink, a bind mount): it is *home*;
- another place, and a folder with the same id is still at the old one: it is a *copy*, and must not be used before
  `lastword relocate` has made it a separate folder;
- another place, and no folder with that id is at the old one: it was *moved*, and has to be relocated.

The *incarnation* counts how often a folder whose catalog or warehouse is shared was opened for writing (ownership.py).
A relocation notes the new id of a copy before it changes anything else, so that an interrupted relocation resumes with
the same id.
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
    """The relation of a folder to the identity noted in it."""

    UNKNOWN = "unknown"
    HOME = "home"
    MOVED = "moved"
    COPY = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a data folder: its id, its real path, and its incarnation."""

    id: str
    path: str
    incarnation: int = 0
    token: str = ""
    """Distinguishes this incarnation from one of the same number that a clone of the folder has taken."""
    becoming: str | None = None
    """The id that a copy at `becoming_path` gets when its relocation is done."""
    becoming_path: str | None = None


def new_identity(folder: Path) -> Identity:
    """Return a new, unique identity for a folder at its current place."""
    return Identity(id=new_uuid().hex, path=str(folder.resolve()))


def load(folder: Path) -> Identity | None:
    """Load the identity of a folder; None if it has none, like folders of the first version."""
    return state_file.load(
        folder / IDENTITY_FILE,
        lambda saved: Identity(**saved),
        f"So it is not known whether {folder} is a copy of another folder. If it is not, remove the file and open the "
        f"folder for writing: it gets a new identity.",
    )


def save(folder: Path, identity: Identity) -> Identity:
    """Save an identity so that it survives a power failure."""
    path = folder / IDENTITY_FILE
    try:
        state_file.save(path, asdict(identity), indent=1)
    except OSError as error:
        raise StorageError(f"Can't write {path}: {error.strerror or error}.") from error
    return identity


def standing(folder: Path, identity: Identity | None) -> Standing:
    """Return the relation of a folder to the identity noted in it."""
    if identity is None:
        return Standing.UNKNOWN
    original = Path(identity.path)
    if original == folder.resolve() or is_same_place(original, folder):
        return Standing.HOME
    try:
        there = load(original)
    except (CorruptError, StorageError):
        # Something unreadable is there. Taking it for the original by mistake can be corrected, the opposite can't.
        return Standing.COPY
    return Standing.COPY if there is not None and there.id == identity.id else Standing.MOVED


def is_same_place(one: Path, other: Path) -> bool:
    """Return whether two paths lead to the same folder, whatever their names are."""
    try:
        return os.path.samestat(one.stat(), other.stat())
    except OSError:
        return False


def refuse_copy(folder: Path) -> None:
    """Raise ForeignFolderError if a folder is a copy of one that still exists."""
    identity = load(folder)
    if identity is not None and standing(folder, identity) is Standing.COPY:
        raise copy_error(folder, identity.path)


def copy_error(folder: Path, original: str) -> ForeignFolderError:
    return ForeignFolderError(
        f"{folder} is a copy of {original}, which is still there: its tables name the files of {original}. "
        f"`lastword relocate --data {folder}` makes it a separate folder; until then it can't be read or changed."
    )


def moved_error(folder: Path, original: str) -> ForeignFolderError:
    return ForeignFolderError(
        f"{folder} has been moved here from {original}, and its tables still name that place. "
        f"Run `lastword relocate --data {folder}` to rewrite them, or open it once for writing."
    )


def relocated(folder: Path, identity: Identity, *, new_id: str | None) -> Identity:
    """Return the identity of a folder after its relocation. With a new id it is a different folder."""
    here = str(folder.resolve())
    if new_id is None:
        return replace(identity, path=here, becoming=None, becoming_path=None)
    return Identity(id=new_id, path=here)
