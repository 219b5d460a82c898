"""ApiVersions: the APIs that are served, and their versions."""

from __future__ import annotations

from collections.abc import Iterable

from kafka.protocol.metadata import ApiVersionsResponse

from lastword.broker.errors import ErrorCode
from lastword.broker.wire import API_VERSIONS, APIS, Answer, Handler, Peer, Request


class VersionsHandler:
    """Answers with the versions of the APIs that have a handler."""

    def __init__(self, served: Iterable[int]) -> None:
        self._served = sorted({*served, API_VERSIONS})

    def handlers(self) -> dict[int, Handler]:
        return {API_VERSIONS: self._api_versions}

    async def _api_versions(self, request: Request, _peer: Peer) -> Answer:
        code = ErrorCode.NONE if request.message is not None else ErrorCode.UNSUPPORTED_VERSION
        return ApiVersionsResponse(
            error_code=int(code),
            api_keys=[
                ApiVersionsResponse.ApiVersion(
                    api_key=key, min_version=APIS[key].min_version, max_version=APIS[key].max_version
                )
                for key in self._served
            ],
            throttle_time_ms=0,
        )
