"""Refuses nulls in fields that are not nullable. kafka-python's codec reads a null wherever a length may be -1."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from lastword.broker.wire import APIS, Answer, Handler, MalformedError, Message, Peer, Request


def refusing_nulls(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Wrap handlers so that they only get messages without invalid nulls."""
    return {key: _refusing(key, handler) for key, handler in handlers.items()}


def _refusing(key: int, handler: Handler) -> Handler:
    name = APIS[key].name

    async def checked(request: Request, peer: Peer) -> Answer:
        try:
            _check(request.message, _fields_of(key, request.api_version))
        except MalformedError as error:
            raise MalformedError(f"{name} version {request.api_version}: {error}") from None
        return await handler(request, peer)

    return checked


class _Field(NamedTuple):
    """A field of a message. `nested` are the fields of it or, if it is an array, of its elements."""

    name: str
    is_nullable: bool
    is_array: bool
    nested: tuple[_Field, ...] | None


@cache
def _fields_of(key: int, version: int) -> tuple[_Field, ...]:
    return _fields(APIS[key].request._struct, version)  # noqa: SLF001


def _fields(schema: Any, version: int) -> tuple[_Field, ...]:
    """Return the fields that a message has in a version."""
    found = []
    for field in schema.fields.values():
        if not field.for_version_q(version):
            continue
        is_array = field.is_array() or field.is_struct_array()
        inner = field.array_of if is_array else field
        nested = _fields(inner, version) if inner.is_struct() else None
        # The codec reads an id of zeros as a null. It means that the topic is given by name.
        is_nullable = field.nullable_for_version_q(version) or inner.type_str == "uuid"
        found.append(_Field(field.name, is_nullable, is_array, nested))
    return tuple(found)


def _check(message: Message, fields: tuple[_Field, ...]) -> None:
    for name, is_nullable, is_array, nested in fields:
        value = getattr(message, name)
        if value is None:
            if not is_nullable:
                raise MalformedError(f"{name} is null")
        elif is_array:
            for each in value:
                if each is None:
                    raise MalformedError(f"an element of {name} is null")
                if nested is not None:
                    _check(each, nested)
        elif nested is not None:
            _check(value, nested)
