"""A real Kafka and Lastword side by side. Skipped with a line that says why where Maven can't be reached."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from peers.jars import UnreachableError
from peers.kafka import KafkaPeer
from tests.support.server import Server, serving


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/peers/" in item.path.as_posix():
            item.add_marker(pytest.mark.peers)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaPeer]:
    try:
        peer = KafkaPeer(tmp_path_factory.mktemp("kafka"), heap="1g")
    except UnreachableError as error:
        pytest.skip(str(error))
    with peer:
        yield peer


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`lastword serve` at its default settings."""
    with serving(tmp_path_factory.mktemp("lastword") / "data", settings="") as server:
        yield server
