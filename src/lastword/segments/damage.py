"""Tells apart a damaged segment file, a missing one, and storage that does not answer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from lastword.errors import CorruptError, StorageError
from lastword.segments.fileio import SyncedFileIO
from lastword.segments.model import Segment, SegmentGoneError


def _gone(segment: Segment, path: str) -> SegmentGoneError:
    return SegmentGoneError(
        f"The segment file {path} is no longer there.",
        path=path,
        offset=segment.first_offset,
    )


@contextmanager
def damage_named(file_io: SyncedFileIO, segment: Segment, delete_file: str = "") -> Iterator[None]:
    """Distinguish a damaged file (CorruptError) from a missing file and from storage that does not answer.

    The file is the segment's, or one of its delete files.
    """
    path = delete_file or segment.path
    try:
        yield
    except FileNotFoundError as error:
        raise _gone(segment, path) from error
    except (OSError, pa.ArrowException, KeyError, UnicodeDecodeError) as error:
        _raise_if_unreadable(file_io, segment, path, error)
        what = f"The delete file {path} of {segment.path}" if delete_file else f"The segment file {path}"
        raise CorruptError(
            f"{what} (offsets {segment.first_offset} to {segment.last_offset}) is "
            f"damaged: {error}. Restore the file from a backup, or delete the records up to its last offset.",
            path=path,
            offset=segment.first_offset,
        ) from error


def _raise_if_unreadable(file_io: SyncedFileIO, segment: Segment, path: str, cause: Exception) -> None:
    """Read the whole file again: pyarrow raises the same errors for damaged bytes and for failing reads."""
    with tempfile.TemporaryFile() as copy:
        try:
            with file_io.new_input(path).open(seekable=False) as stream:
                while data := stream.read(1 << 20):
                    copy.write(data)
        except FileNotFoundError as error:
            raise _gone(segment, path) from error
        except (OSError, pa.ArrowException) as error:
            raise StorageError(f"The segment file {path} can't be read: {error}") from error
        if isinstance(cause, OSError) and _is_sound(copy):
            raise StorageError(
                f"The segment file {path} could not be read: {cause}. It is not damaged; try again."
            ) from cause


def _is_sound(file: BinaryIO) -> bool:
    """Return whether every page of a file can be decoded."""
    try:
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        for group in range(parquet.num_row_groups):
            parquet.read_row_group(group, use_threads=False)
    except (OSError, pa.ArrowException):
        return False
    return True
