"""How the compiled loops are compiled, and the types that their signatures are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit, types

_Function = TypeVar("_Function", bound=Callable[..., Any])
Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


def array_of(item: Any, *, dimensions: int = 1, readonly: bool = False) -> Any:
    return types.Array(item, dimensions, "C", readonly=readonly)


DATA: Final = array_of(types.uint8, readonly=True)
BYTES: Final = array_of(types.uint8)
INT32S: Final = array_of(types.int32)
INT64S: Final = array_of(types.int64)


def compiled(*signature: Any) -> Callable[[_Function], _Function]:
    """Apply njit. A function with a signature is called from Python: it is compiled here and kept in numba's cache.

    Without a place for the cache, or with damaged files in it (numba doesn't sync them, so a power failure can
    truncate them), each start compiles. An error that is not the cache's occurs again without it, and is raised.
    """

    def decorate(function: _Function) -> _Function:
        if signature:
            try:
                return cast(_Function, njit(*signature, nogil=True, cache=True)(function))
            except Exception:  # noqa: BLE001 - unpickling a damaged file can raise anything.
                pass
        return cast(_Function, njit(*signature, nogil=True)(function))

    return decorate
