"""Arrow columns as the compiled loops take them: without a copy, wherever in its buffers a slice begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from lastword.batch._compiled import Column

_NO_BYTES: Final = np.frombuffer(b"", np.uint8)


def binary_column(array: pa.Array) -> Column:
    """A binary or text column."""
    from lastword.batch import _compiled

    validity, offsets, data = array.buffers()
    return _compiled.Column(
        _offsets(offsets, array), _bytes(data), _bytes(validity if array.null_count else None), array.offset
    )


def list_ranges(lists: pa.Array) -> Column:
    """Where the items of a list column's rows begin and end."""
    from lastword.batch import _compiled

    validity, offsets = lists.buffers()[:2]
    return _compiled.Column(
        _offsets(offsets, lists), _NO_BYTES, _bytes(validity if lists.null_count else None), lists.offset
    )


def _offsets(buffer: pa.Buffer | None, array: pa.Array) -> npt.NDArray[np.int32]:
    if len(array) == 0 or buffer is None:
        offsets = np.zeros(len(array) + 1, np.int32)
    else:
        offsets = np.frombuffer(buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    offsets.flags.writeable = False
    return offsets


def _bytes(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    if buffer is None or buffer.size == 0:
        return _NO_BYTES
    return np.frombuffer(memoryview(buffer).toreadonly(), np.uint8)
