"""Where the epochs of a partition end."""

from __future__ import annotations

import pytest

from lastword.broker.offsets import end_of_epoch

EPOCHS = ((1, 100), (2, 150), (5, 170))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (-1, (-1, -1)),
        (0, (0, 100)),
        (1, (1, 150)),
        (2, (2, 170)),
        (4, (2, 170)),
        (5, (5, 200)),
        (6, (-1, -1)),
    ],
)
def test_ends(asked: int, found: tuple[int, int]) -> None:
    """As Kafka has it: an epoch from before the oldest that is known ends where that begins."""
    assert end_of_epoch(EPOCHS, asked, 200) == found
