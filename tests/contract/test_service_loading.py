"""What `compaction.service.factory` may name, and what a log says to the rest when it is opened."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import open_log

from lastword.compaction.service import CompactionServiceFactory, TopicCompactionService
from lastword.errors import InvalidConfigError

METHODS = ("compact", "read_compacted_entries", "last_compacted_entry", "last_compacted_position", "close")

MODULE = """
class Service:
    def compact(self, request=None): return ()
    def read_compacted_entries(self, partition, start, count): return None
    def last_compacted_entry(self, partition): return None
    def last_compacted_position(self, partition): return None
    def close(self): pass

class Factory:
    started = 0
    def initialize(self, context): Factory.started += 1
    def new_topic_compaction_service(self, topic): return Service()
    def close(self): pass

class Hinted(Factory):
    def new_topic_compaction_service(self, topic) -> Service: return Service()

class WithoutMethod(Factory):
    new_topic_compaction_service = None

class Demanding(Factory):
    def __init__(self, folder): pass

not_a_class = 1
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with factories that no other test has."""
    name = f"own_service_{tmp_path.name}".replace("-", "_").replace("[", "").replace("]", "")
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{name}_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_a_factory_is_loaded_at_open_and_started_with_its_first_use(
    module: str, folder: Path, clock: ManualClock
) -> None:
    with open_log(folder, clock, {"compaction.service.factory": f"{module}:Factory"}) as log:
        factory = sys.modules[module].Factory
        topic = log.create_topic("t", config={"cleanup.policy": "compact"})
        assert factory.started == 0

        topic.append("k", "v")
        assert [record.value for record in topic.read(compacted=True)] == [b"v"]
        log.compact(seal=True)
        assert factory.started == 1


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_such_module_at_all:Factory", "the module 'no_such_module_at_all' can't be loaded"),
        ("{module}_broken:Factory", "the module '{module}_broken' can't be loaded: division by zero"),
        ("{module}:Missing", "'{module}' has no class 'Missing'"),
        ("{module}:not_a_class", "'{module}' has no class 'not_a_class'"),
        ("{module}:WithoutMethod", "it lacks the method new_topic_compaction_service()"),
        ("{module}:Demanding", "Demanding() failed"),
        ("{module}", "module:Class"),
        ("{module}:", "module:Class"),
    ],
)
def test_a_log_for_writing_does_not_open_with_a_factory_that_can_not_be_used(
    name: str, problem: str, module: str, folder: Path, clock: ManualClock
) -> None:
    wrong = {"compaction.service.factory": name.format(module=module)}

    with pytest.raises(InvalidConfigError) as caught:
        open_log(folder, clock, wrong)

    assert problem.format(module=module) in str(caught.value)
    assert "compaction.service.factory" in str(caught.value)
    with open_log(folder, clock):
        pass  # The lock was given back.


def test_a_log_for_reading_opens_all_the_same(folder: Path, clock: ManualClock) -> None:
    with open_log(folder, clock) as log:
        log.create_topic("t").append("k", "v")

    wrong = {"compaction.service.factory": "no_such_module_at_all:Factory"}
    with open_log(folder, clock, wrong, read_only=True) as log:
        assert len(list(log.topic("t").read())) == 1
        with pytest.raises(InvalidConfigError, match="no_such_module_at_all"):
            log.topic("t").read(compacted=True)


@pytest.mark.parametrize("method", METHODS)
def test_a_service_without_a_method_is_named_with_it(
    method: str, module: str, folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder.parent)
    service = __import__(module).Service
    monkeypatch.delattr(service, method)

    with pytest.raises(InvalidConfigError, match=rf"'Service', but it lacks the method {method}\(\)"):
        open_log(folder, clock, {"compaction.service.factory": f"{module}:Hinted"})
    # Without a type hint the first service tells.
    with open_log(folder, clock, {"compaction.service.factory": f"{module}:Factory"}) as log:
        log.create_topic("t", config={"cleanup.policy": "compact"})
        with pytest.raises(
            InvalidConfigError, match=rf"'t' is Service, but it lacks the method {method}\(\)"
        ):
            log.compact()


def test_a_log_with_the_default_loads_neither_the_service_nor_spark(tmp_path: Path) -> None:
    program = """
import sys, lastword
with lastword.open(sys.argv[1]) as log:
    topic = log.create_topic("t", config={"cleanup.policy": "compact", "compaction.at.seal": False})
    topic.append("k", "v")
    topic.seal()
    topic.append("k", "w")
    assert len(list(topic.read())) == 2
    # What the shipped services have compacted is the table's, which is read without them.
    assert len(list(topic.read(compacted=True))) == 2
    topic.describe()
    loaded = {"lastword.compaction.compacting", "lastword.compaction.service", "lastword.compaction.keyset", "pyspark"}
    assert not loaded & set(sys.modules), loaded & set(sys.modules)

    # The state view needs the compiled set of keys, and nothing else.
    assert len(topic.state()) == 1
    assert not (loaded - {"lastword.compaction.keyset"}) & set(sys.modules)

    # So does sealing, if it compacts.
    log.alter_topic("t", set_config={"compaction.at.seal": True})
    topic.seal()
    assert "pyspark" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "data")], check=True, timeout=120)


def test_the_page_about_services_names_every_method() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compaction-service.md").read_text()
    for protocol in (CompactionServiceFactory, TopicCompactionService):
        assert f"**{protocol.__name__}**" in page
        for name, method in inspect.getmembers(protocol, inspect.isfunction):
            if not name.startswith("_"):
                parameters = list(inspect.signature(method).parameters)[1:]
                assert f"| `{name}({', '.join(parameters)})` |" in page
