"""Arrow columns in the form of the compiled loops, without a copy, wherever a slice begins in its buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from lastword.batch.compiled.building import Column

_NO_BYTES: Final = np.frombuffer(b"", np.uint8)


def binary_column(array: pa.Array) -> Column:
    """Return a binary or text column."""
    from lastword.batch.compiled import building

    validity, offsets, data = array.buffers()
    return building.Column(
        _offsets(offsets, len(array), array.offset),
        _bytes(data),
        _bytes(validity if array.null_count else None),
        array.offset,
    )


def header_columns(headers: pa.Array | None, rows: int) -> tuple[Column, Column, Column]:
    """Return the ranges of each row's headers, their names, their values. None means a column without headers."""
    from lastword.batch.compiled import building

    if headers is None:
        nothing = building.Column(_offsets(None, rows), _NO_BYTES, _NO_BYTES, 0)
        return nothing, nothing, nothing
    validity, offsets = headers.buffers()[:2]
    ranges = building.Column(
        _offsets(offsets, len(headers), headers.offset),
        _NO_BYTES,
        _bytes(validity if headers.null_count else None),
        headers.offset,
    )
    pairs = headers.values
    return ranges, binary_column(pairs.field(0)), binary_column(pairs.field(1))


def _offsets(buffer: pa.Buffer | None, rows: int, first: int = 0) -> npt.NDArray[np.int32]:
    if rows == 0 or buffer is None:
        offsets = np.zeros(rows + 1, np.int32)
    else:
        offsets = np.frombuffer(buffer, np.int32)[first : first + rows + 1]
    offsets.flags.writeable = False
    return offsets


def _bytes(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    if buffer is None or buffer.size == 0:
        return _NO_BYTES
    return np.frombuffer(memoryview(buffer).toreadonly(), np.uint8)
