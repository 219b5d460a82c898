"""Records and times as text."""

from __future__ import annotations

from datetime import UTC, datetime

LONGEST = 40


def text_of(data: bytes | None) -> str:
    """Return bytes as text, shortened for a story."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    shown = text if text.isprintable() and text and " " not in text else repr(data)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"


def record_text(key: bytes | None, value: bytes | None) -> str:
    """Return a record as `alice=v17`, a tombstone as `alice's tombstone`."""
    if key is not None and value is None:
        return f"{text_of(key)}'s tombstone"
    return f"{'a record without a key' if key is None else text_of(key)}={text_of(value)}"


def time_text(time_ms: float) -> str:
    """Return a time of the server's clock, in its shortest form."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
