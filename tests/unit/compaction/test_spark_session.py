"""What is made of the many ways in which Spark says that it is gone."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from lastword.compaction.spark_session import collect, default_parallelism, message, spark_errors
from lastword.errors import UnavailableError

GONE = [
    # What a call that had begun ends with; py4j gives no reason then.
    Py4JError("An error occurred while calling o61.collectToPython"),
    Py4JNetworkError("Answer from Java side is empty"),
    ConnectionRefusedError(111, "Connection refused"),
    EOFError(),
]


class GoneSession:
    """A session whose JVM dies with whatever is asked of it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def sparkContext(self) -> Any:  # noqa: N802
        raise self._error


@pytest.mark.parametrize("error", GONE, ids=lambda each: type(each).__name__)
def test_a_jvm_that_is_gone_is_unavailable_and_says_so(error: Exception) -> None:
    assert isinstance(error, spark_errors())
    with pytest.raises(UnavailableError, match="Spark no longer answers") as raised:
        default_parallelism(GoneSession(error), is_remote=False)
    assert message(raised.value) == str(raised.value)


def test_a_result_that_can_not_be_fetched_is_unavailable() -> None:
    class Rows:
        def collect(self) -> list[Any]:
            # As in Spark: where no connection can be made, the clean-up fails on what was never set.
            try:
                raise ConnectionRefusedError
                sockfile = object()
            finally:
                del sockfile

    with pytest.raises(UnavailableError, match="Spark no longer answers"):
        collect(Rows())


def test_an_error_of_java_keeps_its_first_line() -> None:
    assert (
        message(UnavailableError("Spark gave 1 of 2 results\n  at java.lang")) == "Spark gave 1 of 2 results"
    )
