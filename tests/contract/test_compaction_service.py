"""Every compaction service that Lastword ships or shows, under the contract that it ships for others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.support import compaction_services
from tests.support.compaction_services import BROKEN, OneSessionSparkFactory

from lastword.testing import CompactionServiceContract

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="module", autouse=True)
def one_session() -> Iterator[None]:
    yield
    OneSessionSparkFactory.stop()


class TestInline(CompactionServiceContract):
    factory = "lastword.compaction.inline:InlineCompactionServiceFactory"


class TestSpark(CompactionServiceContract):
    factory = f"{compaction_services.__name__}:{OneSessionSparkFactory.__name__}"
    config: Mapping[str, object] = {"spark": {"spark.master": "local[2]"}}


class TestParquetCopy(CompactionServiceContract):
    factory = "parquet_copy_service:ParquetCopyServiceFactory"

    @pytest.fixture(autouse=True)
    def example(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.setenv("LASTWORD_COPY_FOLDER", str(tmp_path / "copy"))


class TestContract:
    def test_it_lets_a_service_pass_that_wraps_another(self) -> None:
        factory = f"{compaction_services.__name__}:WrappingFactory"
        for test in sorted({test for _, test in BROKEN})[:3]:
            run(factory, test)

    @pytest.mark.parametrize(("factory", "test"), BROKEN)
    def test_it_finds_a_broken_service(self, factory: str, test: str) -> None:
        with pytest.raises((AssertionError, TypeError)):
            run(factory, test)


def run(factory: str, test: str) -> None:
    contract = type("Contract", (CompactionServiceContract,), {"factory": factory})()
    try:
        getattr(contract, test)()
    finally:
        contract.teardown_method()
