"""Kafka's own Java client behind the methods of confluent-kafka that the recording clients use.

Each client is a process that runs JavaClient.java, which is driven by lines (see there).
"""

from __future__ import annotations

import base64
import itertools
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from peers.jars import jars

SOURCE: Final = Path(__file__).with_name("JavaClient.java")
OFFSET: Final = 1
"""Of a message: its offset was told."""
SILENT_S: Final = 600.0


def _text(data: bytes | None) -> str:
    return "-" if data is None else base64.b64encode(data).decode()


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else base64.b64decode(text)


class _Process:
    """A Java process, with lines in and lines out."""

    def __init__(self, kind: str, address: str, settings: Mapping[str, Any]) -> None:
        command = [
            "java",
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-cp",
            f"{jars('kafka')}/*",
            str(SOURCE),
            kind,
            address,
        ]
        command += [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in settings.items()
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._answers: deque[list[str]] = deque()
        self._news = threading.Condition()
        self._is_over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        # It is compiled when it is started.
        assert self.take(SILENT_S) == ["ready"]

    def say(self, *fields: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(map(str, fields)) + "\n")
        self._process.stdin.flush()

    def take(self, patience_s: float) -> list[str] | None:
        """Take the next line; None if none comes in time."""
        with self._news:
            self._news.wait_for(lambda: self._answers or self._is_over, patience_s)
            if not self._answers and self._is_over:
                raise AssertionError("the Java client has ended")
            return self._answers.popleft() if self._answers else None

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(180)
        self._reader.join(180)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._answers.append(line.rstrip("\n").split("\t"))
                self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()


class JavaMessage:
    """A record, the end of a partition, or an error."""

    def __init__(
        self,
        offset: int | None = None,
        *,
        time_ms: int = -1,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        error: KafkaError | None = None,
    ) -> None:
        self._offset, self._time_ms, self._key, self._value = offset, time_ms, key, value
        self._headers, self._error = list(headers), error

    def offset(self) -> int | None:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return OFFSET, self._time_ms

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._headers

    def error(self) -> KafkaError | None:
        return self._error


class JavaProducer:
    """An idempotent producer."""

    def __init__(self, address: str, settings: Mapping[str, Any]) -> None:
        self._java = _Process("producer", address, settings)
        self._numbers = itertools.count()
        self._pending: dict[str, Callable[[Any, Any], None]] = {}

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes,
        partition: int,
        *,
        on_delivery: Callable[[Any, Any], None],
        timestamp: int,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        if len(self._pending) > 300:
            raise BufferError
        number = str(next(self._numbers))
        self._pending[number] = on_delivery
        shown = ",".join(f"{name}:{_text(each)}" for name, each in headers)
        self._java.say("send", number, topic, partition, timestamp, _text(key), _text(value), shown)

    def poll(self, patience_s: float) -> None:
        """Tell of what has been delivered, or has failed."""
        while (answer := self._java.take(patience_s)) is not None:
            self._tell(answer)
            patience_s = 0

    def flush(self, patience_s: float) -> int:
        """Wait until all records have been delivered, or have failed. Return the number of others."""
        deadline_s = time.monotonic() + patience_s
        self._java.say("flush")
        while (answer := self._java.take(max(0.0, deadline_s - time.monotonic()))) is not None:
            if answer[0] == "flushed":
                break
            self._tell(answer)
        return len(self._pending)

    def close(self) -> None:
        self._java.close()

    def _tell(self, answer: list[str]) -> None:
        kind, number, what = answer
        on_delivery = self._pending.pop(number)
        if kind == "acked":
            on_delivery(None, JavaMessage(int(what)))
        else:
            on_delivery(KafkaError(KafkaError._FAIL, what), JavaMessage())


class JavaConsumer:
    """A consumer of one partition at a time."""

    def __init__(self, address: str, settings: Mapping[str, Any]) -> None:
        self._java = _Process("consumer", address, settings)

    def get_watermark_offsets(self, at: TopicPartition, patience_s: float) -> tuple[int, int]:
        self._java.say("offsets", at.topic, at.partition)
        _, low, high = self._answer()
        return int(low), int(high)

    def assign(self, partitions: list[TopicPartition]) -> None:
        (at,) = partitions
        self._java.say("assign", at.topic, at.partition, at.offset)
        self._answer()

    def unassign(self) -> None:
        self._java.say("unassign")
        self._answer()

    def consume(self, most: int, patience_s: float) -> list[JavaMessage]:
        """Return the records of one poll, of which there may be more than were asked for."""
        self._java.say("poll")
        found: list[JavaMessage] = []
        while (answer := self._answer())[0] == "record":
            _, offset, time_ms, key, value, headers = answer
            pairs = [each.partition(":") for each in headers.split(",") if each]
            found.append(
                JavaMessage(
                    int(offset),
                    time_ms=int(time_ms),
                    key=_bytes(key),
                    value=_bytes(value),
                    headers=[(name, _bytes(each)) for name, _, each in pairs],
                )
            )
        if answer[0] == "end":
            found.append(JavaMessage(int(answer[1]), error=KafkaError(KafkaError._PARTITION_EOF)))
        return found

    def close(self) -> None:
        self._java.close()

    def _answer(self) -> list[str]:
        answer = self._java.take(SILENT_S)
        assert answer is not None, "the Java consumer is silent"
        if answer[0] == "failed":
            raise KafkaException(KafkaError(KafkaError._FAIL, answer[-1]))
        return answer
