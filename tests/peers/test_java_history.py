"""Java's producer and consumer beside librdkafka's at a real server that is killed, judged by the history checker."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from peers.jars import UnreachableError, jars
from tests.support.postgres import Cluster
from tests.support.real_history.plan import Place, plan_of
from tests.support.real_history.run import carry_out
from tests.support.s3 import S3Server

SECONDS: Final = 60.0


class NoSupplies:
    """The place of these tests needs no other server."""

    def cluster(self) -> Cluster:
        raise AssertionError

    def s3(self) -> S3Server:
        raise AssertionError


@pytest.fixture(scope="module", autouse=True)
def _client() -> None:
    try:
        jars("kafka")
    except UnreachableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("seed", [100, 101])
def test_java_clients_see_what_was_promised(seed: int, tmp_path: Path) -> None:
    outcome = carry_out(plan_of(seed, SECONDS, Place(), with_java=True), tmp_path, NoSupplies())
    print(outcome.summary())
    assert outcome.is_good, outcome.told()
    assert outcome.clients["Java producer"] > 50
    assert outcome.clients["Java consumer"] > 2
