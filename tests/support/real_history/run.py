"""A run: a plan is carried out over real processes, and the checker judges what the clients saw.

1. The topics are created. 2. All clients work while things go wrong. 3. Nothing goes wrong any more: everything must
come to rest, take records, and compact. 4. After a restart in order everything is read, and once more without a server
and, by some plans, from a restored backup.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.support.real_history.consuming import Committer, Member, RecordingConsumer
from tests.support.real_history.embedded import Embedded
from tests.support.real_history.misfortune import Misfortunes
from tests.support.real_history.operating import Operator
from tests.support.real_history.place import PlaceAtHand, Supplies, place_for
from tests.support.real_history.plan import KEYS, ClientPlan, Plan, TopicPlan
from tests.support.real_history.producing import RecordingProducer
from tests.support.real_history.reading import Reader, run_command
from tests.support.real_history.recording import RefusedError, Surroundings, UnclearError, Words
from tests.support.real_history.served import Served

from lastword.testing.history import Options, Recorder, Report, check, tell
from lastword.testing.history import Outcome as Ending

SOON_MS: Final = 10_000
END_S: Final = 600.0
"""How long the clients may take to end, on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run showed."""

    plan: Plan
    report: Report
    problems: tuple[str, ...]
    operations: Counter[str]
    """By kind and outcome."""
    clients: Counter[str]
    """How many operations of each client went well."""
    counts: Counter[str]
    """What went wrong how often, and what else is worth counting."""
    history: Path
    seconds: float

    @property
    def is_good(self) -> bool:
        return self.report.ok and not self.problems

    def told(self) -> str:
        """Return all that a person needs who looks for the cause."""
        return "\n".join(
            [
                f"seed {self.plan.seed}: {self.plan}",
                f"The history is in {self.history} (python -m lastword.testing.history FILE tells it), server.log is beside it.",
                f"It went wrong: {dict(self.counts)}",
                *self.problems,
                tell(self.report),
            ]
        )

    def summary(self) -> str:
        """Return some lines of figures."""
        place = self.plan.place
        facts = ", ".join(f"{rule} {count}" for rule, count in self.report.checked.items())
        return (
            f"seed {self.plan.seed} ({place.engine}, {place.catalog}, {place.warehouse}, {place.disk} disk"
            f"{', default settings' if place.is_default else ''}): {sum(self.operations.values())} operations in "
            f"{self.seconds:.0f} s, {'ok' if self.is_good else 'FAILED'}\n"
            f"  facts: {facts}\n  operations: {dict(sorted(self.operations.items()))}\n"
            f"  counts: {dict(sorted(self.counts.items()))}"
        )


def carry_out(plan: Plan, folder: Path, supplies: Supplies) -> Outcome:
    """Carry out a plan in an empty folder."""
    began_s = time.monotonic()
    path = folder / "history.jsonl"
    with (
        place_for(plan, folder, supplies) as place,
        Recorder(clock=place.clock, path=path) as recorder,
    ):
        run = _Run(plan, place, recorder)
        try:
            run.carry_out()
        except Exception:  # noqa: BLE001
            run.around.problem(traceback.format_exc())
        finally:
            run.end()
        history = recorder.history()
    (folder / "server.log").write_text(run.around.served.log)
    report = check(history, Options(settings={"wal.sync": plan.place.wal_sync}))
    outcome = Outcome(
        plan=plan,
        report=report,
        problems=tuple(dict.fromkeys(run.around.problems)),
        operations=Counter(f"{type(each).__name__} {each.outcome}" for each in history),
        clients=Counter(each.process for each in history if each.outcome is Ending.OK),
        counts=run.around.served.counts,
        history=path,
        seconds=time.monotonic() - began_s,
    )
    (folder / "outcome.txt").write_text(outcome.told())
    return outcome


class _Run:
    """One run, from the first topic to the last read."""

    def __init__(self, plan: Plan, place: PlaceAtHand, recorder: Recorder) -> None:
        self._plan = plan
        self.around = Surroundings(
            plan=plan,
            place=place,
            served=Served(place, recorder),
            recorder=recorder,
            oracle=Embedded(place.data, place.clock),
            ended=threading.Event(),
            at_peace=threading.Event(),
        )
        self._operator = Operator(self.around, "operator")
        self._maintainer = Operator(self.around, "maintainer")
        self._committer: Committer | None = None

    def carry_out(self) -> None:
        for topic in self._plan.topics:
            self._operator.create(topic)
        self._let_things_go_wrong()
        self._come_to_rest()
        self.around.served.restart()
        self.around.served.wait_until_ready()
        self._read_everything("last consumer", self._plan.topics)
        self.around.served.stop()
        self._read_without_server()
        if self._plan.restores and self._maintainer.backups:
            self._restore()

    def end(self) -> None:
        """Stop everything, also after a failure."""
        around = self.around
        around.ended.set()
        around.oracle.close()
        around.served.end()
        for each in _tracebacks(around.served.log):
            around.problem(f"the server has logged a traceback: {each}")
        if around.place.proxy is not None:
            around.place.proxy.trouble()
            around.served.counts.update({f"store {name}": n for name, n in around.place.proxy.counts.items()})

    # ------------------------------------------------------------------------------------ while it goes wrong

    def _let_things_go_wrong(self) -> None:
        around, plan = self.around, self._plan
        lasting, churned, passing = plan.topics
        sends = ((lasting, passing), (churned,), plan.topics)
        producers = [
            RecordingProducer(around, each, topics)
            for each, topics in zip(plan.producers, sends, strict=True)
        ]
        members = [Member(around, "members", number) for number in (1, 2)]
        self._committer = Committer(around, "committer")
        clients: dict[str, Callable[[], None]] = {
            "operator": self._operator.change,
            "maintainer": self._maintainer.maintain,
            "committer": self._committer.run,
            "reader": Reader(around, "reader").run,
        }
        clients |= {f"producer {number}": each.run for number, each in enumerate(producers)}
        clients |= {f"member {number}": each.run for number, each in enumerate(members)}
        clients |= {each.name: RecordingConsumer(around, each).run for each in plan.consumers}
        threads = [
            threading.Thread(target=self._guarded, args=(name, act), name=name, daemon=True)
            for name, act in clients.items()
        ]
        for thread in threads:
            thread.start()
        misfortunes = Misfortunes(around)
        misfortunes.run(plan.seconds)
        around.at_peace.set()
        for error in misfortunes.errors:
            around.problem("a misfortune failed: " + "".join(traceback.format_exception(error)))
        until_s = time.monotonic() + END_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
            if thread.is_alive():
                around.problem(
                    f"the {thread.name} does not come to an end, though nothing goes wrong any more"
                )
        around.served.counts["rebalances"] = sum(each.rebalances for each in members)
        around.served.counts["producers ended by librdkafka"] = sum(each.lives - 1 for each in producers)
        around.served.counts["backups"] = len(self._maintainer.backups)

    def _guarded(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException:  # noqa: BLE001
            self.around.problem(f"the {name} failed: {traceback.format_exc()}")

    # ----------------------------------------------------------------------------------- when nothing goes wrong

    def _come_to_rest(self) -> None:
        self.around.served.wait_until_ready()
        if self._plan.restores:
            self.around.until_done(self._maintainer.back_up, "a backup")
        self._append_everywhere(self._plan.topics)
        for topic in self._plan.topics:
            self._wait_until_sealed(topic)
            self._compact(topic)
        self._read_everything("resting consumer", self._plan.topics)

    def _append_everywhere(self, topics: tuple[TopicPlan, ...]) -> None:
        """Every partition must take records."""
        plan = ClientPlan(name="last producer", config={"enable.idempotence": True})
        producer = RecordingProducer(self.around, plan, topics)
        words = Words(self.around, self.around.chance("last words"))
        for topic in topics:
            for key in KEYS[::3]:
                producer.send(topic, words.record(topic, key, tombstones=0.2))
        producer.flush()

    def _wait_until_sealed(self, topic: TopicPlan) -> None:
        """The worker must seal by itself, where the settings ask for it soon."""
        settings = {each["key"]: each["value"] for each in self._described(topic)["settings"]}
        if int(settings["tiering.lag.ms"]) > SOON_MS:
            return

        def is_sealed() -> bool:
            return all(each["sealed_end"] == each["log_end"] for each in self._described(topic)["partitions"])

        self.around.until_done(is_sealed, f"sealing {topic.name}")

    def _compact(self, topic: TopicPlan) -> None:
        around = self.around
        last: dict[str, object] = {}

        def is_compacted() -> bool:
            report = self._maintainer.compact(topic, force=True)
            last.update({"report": report})
            return report is not None and not _failures(report)

        if not around.until_done(is_compacted, f"a compaction of {topic.name}"):
            around.problem(f"the last compaction of {topic.name}: {last}")
        described = self._described(topic)
        for each in described["partitions"]:
            if each["problem"] is not None:
                around.problem(f"{topic.name}-{each['partition']} has a problem at peace: {each['problem']}")
            if each["sealed_end"] != each["log_end"]:
                around.problem(f"{topic.name}-{each['partition']} is not sealed to its end: {each}")

    def _described(self, topic: TopicPlan) -> Mapping[str, Any]:
        found: list[Mapping[str, Any]] = []

        def is_told() -> bool:
            try:
                found.append(self.around.ask("GET", f"/v1/topics/{topic.name}"))
            except (RefusedError, UnclearError):
                return False
            return True

        self.around.until_done(is_told, f"describing {topic.name}")
        return found[-1]

    def _read_everything(self, name: str, topics: tuple[TopicPlan, ...]) -> None:
        consumer = RecordingConsumer(self.around, ClientPlan(name=name, config={}))
        reader = Reader(self.around, f"{name}'s reader")
        for topic in topics:
            for partition in range(topic.partitions):
                self.around.until_done(
                    lambda topic=topic, partition=partition: consumer.read_all(topic, partition),
                    f"reading {topic.name}-{partition}",
                )
            reader.look(topic)
            reader.state(topic)
        consumer.close()
        reader.close()
        if self._committer is not None:
            self._committer.read_all()

    def _read_without_server(self) -> None:
        reader = Reader(self.around, "reader without a server")
        for topic in self._plan.topics:
            reader.state(topic)
        reader.close()

    def _restore(self) -> None:
        """Serve the newest backup instead of the log, and read it."""
        around = self.around
        backup, began, ended = self._maintainer.backups[-1]
        folder = around.place.elsewhere / "restored"
        with around.recorder.restore(began, ended, process="operator") as pending:
            place = str(around.place.elsewhere / "backups")
            done = run_command(around, "restore", place, "--backup", backup, folder=folder)
            if done.returncode != 0:
                around.problem(f"a backup could not be restored: {done.stderr}")
                return
            around.served.move(replace(around.place, data=folder))
            pending.ok()
        around.served.counts["restores"] += 1
        self._read_restored(folder)

    def _read_restored(self, folder: Path) -> None:
        self.around.served.wait_until_ready()
        # The churned topic may have been away while the backup was made.
        steady = tuple(each for each in self._plan.topics if not each.is_churned)
        oracle = Embedded(folder, self.around.clock)
        self.around = replace(self.around, oracle=oracle, place=replace(self.around.place, data=folder))
        self._committer = None
        self._append_everywhere(steady)
        self._read_everything("consumer of the restored log", steady)
        oracle.close()
        self.around.served.stop()


def _failures(report: Mapping[str, Any]) -> list[object]:
    partitions = [each["problem"] for each in report["partitions"] if each["problem"] is not None]
    return [*partitions, *report["failed_topics"], *report["not_sealed"]]


def _tracebacks(log: str) -> list[str]:
    """Return the tracebacks of a log, each with the message before it. Of those that end alike only the first."""
    lines = log.splitlines()
    found: dict[str, str] = {}
    for start, line in enumerate(lines):
        if line.startswith("Traceback"):
            end = next(
                (at for at in range(start + 1, len(lines)) if not lines[at].startswith(" ")), len(lines) - 1
            )
            found.setdefault(lines[end], "\n".join(lines[max(0, start - 1) : end + 1]))
    return list(found.values())
