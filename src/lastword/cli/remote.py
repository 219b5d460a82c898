"""The backend beside a server: the same operations, through the server's admin API."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlencode, urlsplit

from lastword.cli.backend import Appender, P, R
from lastword.clock import SystemClock
from lastword.errors import UnavailableError
from lastword.folder.problems import from_problem
from lastword.folder.running import RunningServer
from lastword.record_json import Json, Parsed, parsed_data

if TYPE_CHECKING:
    from lastword.operations.table import Operation
    from lastword.operations.topics import OnProgress

WAIT_MS = 15_000
"""How long a command waits for a server whose broker is restarting."""
TIMEOUT_S = 120.0
"""The longest time without a byte from the server. Jobs that take longer send one now and then."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Asks the admin API of a running server."""

    server: RunningServer

    def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        path, said = operation.address(operation.request(*args, **kwargs))
        # What is not said has its default there, too.
        said = {name: value for name, value in said.items() if value is not None}
        found: Any
        if operation.verb == "GET":
            found = self._ask("GET", f"{path}?{urlencode(said)}" if said else path)
        elif operation.in_worker:
            found = self._job(path, said, cast("OnProgress | None", kwargs.get("progress")))
        else:
            found = self._ask(operation.verb, path, None if operation.verb == "DELETE" else said)
        return cast(R, found)

    def broker_settings(self) -> list[Json]:
        return self._list("/v1/config")

    def skip_wal_damage(self, name: str) -> Json:
        return self._post(_topic(name, "wal/skip-damage"), {})

    @contextmanager
    def appender(self, name: str) -> Iterator[Appender]:
        # Report a missing topic before any line is read.
        self._list(_topic(name, "config"))
        yield _RemoteAppender(self, name)

    def append(self, name: str, body: Json) -> Json:
        return self._post(_topic(name, "records"), body)

    # ------------------------------------------------------------------------------------------ sources

    def connectors(self) -> list[Json]:
        return self._list("/v1/connectors")

    def pause_connector(self, name: str) -> Json:
        return self._post(f"/v1/connectors/{quote(name, safe='')}/pause", {})

    def resume_connector(self, name: str) -> Json:
        return self._post(f"/v1/connectors/{quote(name, safe='')}/resume", {})

    # ------------------------------------------------------------------------------------------- groups

    def groups(self) -> list[Json]:
        return self._list("/v1/groups")

    def describe_group(self, name: str) -> Json:
        return self._get(f"/v1/groups/{quote(name, safe='')}")

    def delete_group(self, name: str) -> Json:
        found: Json = self._ask("DELETE", f"/v1/groups/{quote(name, safe='')}")
        return found

    # --------------------------------------------------------------------------------------- the worker

    def run_worker_once(self) -> Json:
        return self._job("/v1/worker/run", {})

    def status(self) -> Json:
        return self._get("/v1/status")

    # ---------------------------------------------------------------------------------------------- HTTP

    def _list(self, path: str) -> list[Json]:
        with self._sent("GET", path, None, "application/json") as response:
            found: list[Json] = _content(response)
            return found

    def _get(self, path: str) -> Json:
        found: Json = self._ask("GET", path)
        return found

    def _post(self, path: str, body: Json) -> Json:
        found: Json = self._ask("POST", path, body)
        return found

    def _ask(self, method: str, path: str, body: Json | None = None) -> Any:
        with self._sent(method, path, body, "application/json") as response:
            return _content(response)

    def _job(self, path: str, body: Json, progress: OnProgress | None = None) -> Json:
        """Start a long job, and follow its events to the result."""
        with self._sent("POST", path, body, "text/event-stream") as response:
            if response.headers.get_content_type() != "text/event-stream":
                found: Json = _content(response)
                return found
            for event, data in _events(response):
                if event == "result":
                    result: Json = data
                    return result
                if event == "problem":
                    raise from_problem(data)
                if event == "progress" and progress is not None:
                    progress(*data)
        raise UnavailableError(
            f"The server at {self.server.admin_url} ended before this was done; commits that it has made stay."
        )

    @contextmanager
    def _sent(
        self, method: str, path: str, body: Json | None, accept: str
    ) -> Iterator[http.client.HTTPResponse]:
        headers = {"Accept": accept, **self._authorization()}
        if method in ("POST", "PATCH"):
            headers["Content-Type"] = "application/json"
        connection = self._connect()
        try:
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, path, body=content, headers=headers)
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(
                f"The server at {self.server.admin_url} (process {self.server.pid}) did not answer: "
                f"{error or type(error).__name__}"
            ) from error
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        """Connect. If nothing listens, the broker may be restarting, so wait a little."""
        address = urlsplit(self.server.admin_url)
        clock = SystemClock()
        waited_ms = 0
        while True:
            connection = http.client.HTTPConnection(
                address.hostname or "", address.port or 0, timeout=TIMEOUT_S
            )
            try:
                connection.connect()
                return connection
            except OSError as error:
                connection.close()
                if waited_ms >= WAIT_MS or not self.server.is_running:
                    raise UnavailableError(
                        f"A server holds the data folder (process {self.server.pid}), but it does not answer at "
                        f"{self.server.admin_url}: {error.strerror or error}"
                    ) from error
            clock.sleep_ms(200)
            waited_ms += 200

    def _authorization(self) -> dict[str, str]:
        if self.server.token_file is None:
            return {}
        try:
            token = Path(self.server.token_file).read_text().strip()
        except OSError as error:
            raise UnavailableError(
                f"The server at {self.server.admin_url} requires a token, and {self.server.token_file}, which has it, "
                f"can't be read: {error.strerror or error}"
            ) from error
        return {"Authorization": f"Bearer {token}"}


@dataclass(frozen=True, slots=True)
class _RemoteAppender:
    remote: Remote
    name: str

    def append(
        self, records: Sequence[Parsed], *, partition: int | None, compression: str
    ) -> list[tuple[int, int]]:
        found = self.remote.append(
            self.name,
            {"records": _data(records), "partition": partition, "compression": compression},
        )
        return [(each["partition"], each["offset"]) for each in found["positions"]]

    def check(self, records: Sequence[Parsed], *, partition: int | None) -> None:
        self.remote.append(self.name, {"records": _data(records), "partition": partition, "check_only": True})


def _data(records: Sequence[Parsed]) -> list[Json]:
    return [parsed_data(each) for each in records]


def _topic(name: str, what: str = "") -> str:
    return f"/v1/topics/{quote(name, safe='')}{f'/{what}' if what else ''}"


def _content(response: http.client.HTTPResponse) -> Any:
    body = response.read()
    try:
        content = json.loads(body)
    except ValueError:
        raise UnavailableError(
            f"The server answered with {response.status}, but not in JSON: {body[:200].decode(errors='replace')!r}"
        ) from None
    if response.status >= 400:
        raise from_problem({**content, "message": content.get("detail")})
    return content


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    """Yield the name and the data of each server-sent event. Comments, which keep the connection alive, are skipped."""
    event, data = "message", ""
    for line in response:
        text = line.decode().rstrip("\r\n")
        if text.startswith("event:"):
            event = text.removeprefix("event:").strip()
        elif text.startswith("data:"):
            data += text.removeprefix("data:").strip()
        elif not text and data:
            yield event, json.loads(data)
            event, data = "message", ""
