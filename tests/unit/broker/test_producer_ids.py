"""Ids of producers: each is given once, whatever happens between."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.broker.producers import BLOCK, ProducerIds
from lastword.errors import StorageError
from lastword.folder.paths import PRODUCER_IDS_FILE


def test_ids_are_never_given_again(tmp_path: Path) -> None:
    first = ProducerIds(tmp_path)
    given = [first.next() for _ in range(BLOCK + 5)]
    # Another start knows only what the file says.
    given += [ProducerIds(tmp_path).next() for _ in range(3)]
    assert len(set(given)) == len(given)


def test_an_unreadable_file_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / PRODUCER_IDS_FILE).write_text("nonsense")
    with pytest.raises(StorageError, match="Can't reserve producer ids"):
        ProducerIds(tmp_path).next()
