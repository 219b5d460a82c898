"""What goes wrong in a run: each misfortune at its time, several at once if they last."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.support.real_history.plan import Misfortune
from tests.support.real_history.recording import Surroundings


class Misfortunes:
    """Carries out the misfortunes of a plan."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._chance = around.chance("misfortune")
        self._lasting: dict[str, threading.Thread] = {}
        self.errors: list[BaseException] = []

    def run(self, seconds: float) -> None:
        """Carry out all of them, or those that begin within some seconds. At the end all of them are over."""
        around, plan = self._around, self._around.plan
        until = threading.Timer(seconds, around.ended.set)
        until.start()
        try:
            for each in plan.misfortunes:
                around.pause(each.after_s)
                if around.ended.is_set():
                    break
                self._begin(each)
            around.ended.wait()
        finally:
            until.cancel()
            around.ended.set()
            for thread in self._lasting.values():
                thread.join()

    def _begin(self, each: Misfortune) -> None:
        # One at a time of a kind. What a proxy does is one kind.
        name = "store" if "store" in each.what else f"{each.what} {each.role or ''}"
        before = self._lasting.get(name)
        if before is not None and before.is_alive():
            return
        thread = threading.Thread(target=self._carry_out, args=(each,), name=name, daemon=True)
        self._lasting[name] = thread
        thread.start()

    def _carry_out(self, each: Misfortune) -> None:
        try:
            self._act_of(each)()
        except BaseException as error:  # noqa: BLE001
            self.errors.append(error)

    def _act_of(self, each: Misfortune) -> Callable[[], None]:
        served = self._around.served
        match each.what, each.role:
            case "kill", (("broker" | "worker" | "supervisor") as role):
                return lambda: served.kill(
                    role, int(each.number), lambda: self._chance.choice([0.0, 0.2, 1.0])
                )
            case "pause", (("broker" | "worker" | "supervisor") as role):
                return lambda: served.pause(role, each.for_s)
            case "restart", _:
                return served.restart
            case "fill disk", _:
                return lambda: self._fill_disk(each)
            case (("fail store" | "slow store"), _):
                return lambda: self._trouble_store(each)
            case "step clock", _:
                return lambda: self._step_clock(each)
            case "kill catalog", _:
                return self._kill_catalog
        raise AssertionError(each)

    def _fill_disk(self, each: Misfortune) -> None:
        disk = self._around.place.disk
        assert disk is not None
        self._around.served.counts[each.what] += 1
        disk.fill(int(each.number))
        try:
            self._around.pause(each.for_s)
        finally:
            disk.free()

    def _trouble_store(self, each: Misfortune) -> None:
        proxy = self._around.place.proxy
        assert proxy is not None
        self._around.served.counts[each.what] += 1
        if each.what == "slow store":
            proxy.trouble(slow_s=each.number)
        else:
            proxy.trouble(fail=each.number * 0.6, drop=each.number * 0.4)
        try:
            self._around.pause(each.for_s)
        finally:
            proxy.trouble()

    def _step_clock(self, each: Misfortune) -> None:
        self._around.served.counts[each.what] += 1
        self._around.clock.step(each.number, self._around.recorder, self._around.topics[0].name)

    def _kill_catalog(self) -> None:
        cluster = self._around.place.cluster
        assert cluster is not None
        self._around.served.counts["kill catalog"] += 1
        cluster.kill()
