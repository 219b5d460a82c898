"""How the processes of Lastword load their libraries: only the parts that they use, and only once."""

from __future__ import annotations

import gc
import sys
from importlib.abc import MetaPathFinder


def freeze() -> None:
    """Exclude everything loaded so far from garbage collection, because it is never freed.

    A log's modules are some hundred thousand objects. Each pass over them takes a tenth of a second, during which
    nothing else runs.
    """
    gc.collect()
    gc.freeze()


def load_arrow_without_pandas() -> None:
    """Load Arrow, and keep it from loading pandas at its first conversion, which takes a third of a second.

    Only for processes of our own. Until pandas is used through Arrow, Arrow takes a pandas Series for any sequence.
    """
    if "pandas" in sys.modules or "pyarrow" in sys.modules:
        return
    hiding = _PandasIsHidden()
    sys.meta_path.insert(0, hiding)
    try:
        import pyarrow

        # The first conversion looks for pandas, and remembers that it is not there.
        pyarrow.scalar(0)
    finally:
        sys.meta_path.remove(hiding)


def let_arrow_use_pandas() -> None:
    """Undo that, for users' code that is loaded into one of our processes."""
    import pyarrow

    try:
        # Only this attribute makes Arrow look for pandas again.
        _ = pyarrow.lib._pandas_api.version  # noqa: SLF001
    except ImportError:
        return


class _PandasIsHidden(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)
