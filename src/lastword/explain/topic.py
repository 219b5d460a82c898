"""Explains records of a topic, partition by partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace

from lastword.errors import InvalidError
from lastword.explain.model import Explanation, PartitionExplanation
from lastword.explain.partition import Known, Question, explain_partition
from lastword.reading.reader import PartitionReader


def explain_topic(
    topic: str,
    partitions: Mapping[int, Callable[[], PartitionReader]],
    known: Callable[[int], Known],
    question: Question,
    clock: Callable[[], int],
) -> Explanation:
    """Explain records of some partitions, each opened in its turn, up to the question's limit in total."""
    if question.limit is not None and question.limit < 1:
        raise InvalidError(f"limit is {question.limit}; it must be at least 1")
    if question.from_offset < 0:
        raise InvalidError(f"the offset to begin at is {question.from_offset}; it must be at least 0")
    found: list[PartitionExplanation] = []
    more: tuple[int, int] | None = None
    for number, open_reader in partitions.items():
        if question.limit == 0:
            more = (number, question.from_offset)
            break
        with closing(open_reader()) as reader:
            found.append(explain_partition(reader, known(number), question, clock))
        if question.limit is not None:
            question = replace(question, limit=question.limit - len(found[-1].records))
        if found[-1].next_offset is not None:
            more = (number, found[-1].next_offset)
            break
    return Explanation(
        topic=topic,
        run=question.run,
        seals=question.seals,
        now_ms=clock(),
        partitions=tuple(found),
        next=more,
    )
