"""The backend beside a server: the same operations, through the server's admin API."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode, urlsplit

from lastword.cli.backend import P, R
from lastword.clock import SystemClock
from lastword.errors import UnavailableError
from lastword.folder.problems import from_problem
from lastword.folder.running import RunningServer
from lastword.record_json import Json

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
        body: Json | None = {name: value for name, value in said.items() if value is not None}
        if operation.verb in ("GET", "DELETE"):
            path, body = f"{path}?{urlencode(body)}" if body else path, None
        found: Any
        if operation.process == "worker":
            progress = cast("OnProgress | None", kwargs.get("progress"))
            found = self._job(operation.verb, path, body, progress)
        else:
            found = self._ask(operation.verb, path, body)
        return cast(R, found)

    def writing(self) -> AbstractContextManager[Remote]:
        return nullcontext(self)

    def status(self) -> Json:
        found: Json = self._ask("GET", "/v1/status")
        return found

    # ---------------------------------------------------------------------------------------------- HTTP

    def _ask(self, method: str, path: str, body: Json | None = None) -> Any:
        with self._sent(method, path, body, "application/json") as response:
            return _content(response)

    def _job(self, method: str, path: str, body: Json | None, progress: OnProgress | None) -> Any:
        """Start a long job, and follow its events to the result."""
        with self._sent(method, path, body, "text/event-stream") as response:
            if response.headers.get_content_type() != "text/event-stream":
                return _content(response)
            for event, data in _events(response):
                if event == "result":
                    return data
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
