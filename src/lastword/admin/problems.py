"""Errors as problem documents (RFC 9457), with Lastword's own message."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lastword import errors
from lastword.errors import LastwordError
from lastword.folder.problems import to_problem

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

_STATUS: tuple[tuple[type[LastwordError], HTTPStatus], ...] = (
    (errors.UnknownTopicError, HTTPStatus.NOT_FOUND),
    (errors.UnknownPartitionError, HTTPStatus.NOT_FOUND),
    (errors.UnknownSourceError, HTTPStatus.NOT_FOUND),
    (errors.UnknownGroupError, HTTPStatus.NOT_FOUND),
    (errors.TopicExistsError, HTTPStatus.CONFLICT),
    (errors.RecordTooLargeError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (errors.InvalidError, HTTPStatus.BAD_REQUEST),
    (errors.ConflictError, HTTPStatus.CONFLICT),
    (errors.UnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.ClosedError, HTTPStatus.SERVICE_UNAVAILABLE),
)


def problem(status: int, error: str, detail: str, **more: Any) -> JSONResponse:
    return JSONResponse(
        {
            "type": f"urn:lastword:error:{error}",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": detail,
            "error": error,
            **more,
        },
        status_code=status,
        media_type=MEDIA_TYPE,
    )


def problem_of(error: LastwordError) -> JSONResponse:
    status = next(
        (status for kind, status in _STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR
    )
    said = to_problem(error)
    return problem(status, said.pop("error"), said.pop("message"), **said)


def install(app: FastAPI) -> None:
    """Turn every error of the app into a problem document."""

    @app.exception_handler(LastwordError)
    async def of_ours(_request: Request, error: LastwordError) -> JSONResponse:
        return problem_of(error)

    @app.exception_handler(RequestValidationError)
    async def of_validation(_request: Request, error: RequestValidationError) -> JSONResponse:
        said = "; ".join(_field_problem(each) for each in error.errors())
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidError", said)

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == HTTPStatus.NOT_FOUND:
            detail = f"nothing is served at {request.url.path}; /docs lists what is"
        else:
            detail = f"{error.detail}: {request.method} {request.url.path}"
        return problem(error.status_code, "InvalidError", detail)

    @app.exception_handler(Exception)
    async def of_bugs(request: Request, error: Exception) -> JSONResponse:
        logger.error(
            "%s %s failed with an unexpected error", request.method, request.url.path, exc_info=error
        )
        return problem(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "LastwordError",
            f"unexpected {type(error).__name__}: {error} (a bug; the server's log has more)",
        )


def _field_problem(found: dict[str, Any]) -> str:
    place = ".".join(str(each) for each in found["loc"] if each != "body") or "the body"
    given = found.get("input")
    shown = "" if isinstance(given, dict | list) or given is None else f" (is {str(given)[:80]!r})"
    return f"{place}: {found['msg']}{shown}"
