"""A changelog like that of change capture from a table of users: inserts, updates of a few hot rows, deletes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

USERS = 120_000
BATCH = 100_000
_CITIES = ["Oslo", "Lagos", "Lima", "Hanoi", "Graz", "Quito", "Perth", "Turin"]
_PLANS = ["free", "team", "business"]


def changelog(records: int, seed: int = 7) -> Iterator[pa.Table]:
    """Yield tables with `key` and `value`. A null value is a delete. About one in thirty changes deletes its row."""
    rng = np.random.default_rng(seed)
    for first in range(0, records, BATCH):
        count = min(BATCH, records - first)
        # A few users change often, most seldom.
        users = (rng.pareto(1.1, count) * 400).astype(np.int64) % USERS
        deleted = rng.random(count) < 1 / 30
        cities, plans = rng.integers(0, len(_CITIES), count), rng.integers(0, len(_PLANS), count)
        values = [
            None
            if gone
            else f'{{"id":{user},"email":"user{user}@example.org","city":"{_CITIES[city]}",'
            f'"plan":"{_PLANS[plan]}","version":{first + row}}}'
            for row, (user, gone, city, plan) in enumerate(
                zip(users.tolist(), deleted.tolist(), cities.tolist(), plans.tolist(), strict=True)
            )
        ]
        keys = [f"user-{user:08d}" for user in users.tolist()]
        yield pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
