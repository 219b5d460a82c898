"""Human-readable numbers."""

from __future__ import annotations


def age(duration_ms: int | None) -> str | None:
    """Format a duration with its two largest units."""
    if duration_ms is None:
        return None
    seconds = max(duration_ms, 0) // 1000
    parts = [
        (seconds // 86400, "d"),
        (seconds // 3600 % 24, "h"),
        (seconds // 60 % 60, "m"),
        (seconds % 60, "s"),
    ]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{amount}{unit}" for amount, unit in parts[:2])
