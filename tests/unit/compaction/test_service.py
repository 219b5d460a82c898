"""A factory that can't be used is refused with what is wrong."""

from __future__ import annotations

import pytest

from lastword.compaction.inline import InlineCompactionServiceFactory
from lastword.compaction.service import check_service, load_factory
from lastword.errors import InvalidConfigError

HERE = __name__


class WithoutClose:
    def initialize(self, context: object) -> None: ...

    def new_topic_compaction_service(self, topic: str) -> object: ...


class NotReady:
    def __init__(self) -> None:
        raise RuntimeError("no key to the shed")

    def initialize(self, context: object) -> None: ...

    def new_topic_compaction_service(self, topic: str) -> object: ...

    def close(self) -> None: ...


def not_a_class() -> None: ...


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lastword.compaction.inline", "module:Class"),
        (":Class", "module:Class"),
        ("module:", "module:Class"),
        ("no.such.module:Class", "'no.such.module' can't be loaded"),
        (f"{HERE}:Missing", "no class 'Missing'"),
        (f"{HERE}:not_a_class", "no class 'not_a_class'"),
        (f"{HERE}:WithoutClose", r"lacks the method close\(\)"),
        (f"{HERE}:NotReady", r"NotReady\(\) failed: no key to the shed"),
    ],
)
def test_what_is_wrong_with_a_factory_is_said(name: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said) as caught:
        load_factory(name)
    assert "compaction.service.factory" in str(caught.value)
    assert name in str(caught.value)


def test_a_factory_is_loaded_by_its_name() -> None:
    found = load_factory("lastword.compaction.inline:InlineCompactionServiceFactory")
    assert isinstance(found, InlineCompactionServiceFactory)


def test_a_service_that_lacks_a_method_is_refused() -> None:
    class Service:
        def compact(self) -> None: ...

    with pytest.raises(
        InvalidConfigError, match=r"the service, but it lacks the method read_compacted_entries\(\)"
    ):
        check_service(Service(), "the service")
