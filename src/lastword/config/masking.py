"""Catalog properties for display: as they are, but without secrets."""

from __future__ import annotations

import re

MASK = "***"

# Better too much than too little: a header may be an authorization, a connection string has keys.
_SECRET_NAME = re.compile(r"pass|pwd|secret|token|key|credential|auth|sas|signature|header|connection-string")
# Greedy up to the last '@', because an unescaped password may contain one.
_URI_PASSWORD = re.compile(r"(://[^:@]*:).*@", re.DOTALL)
_PARAMETER = re.compile(r"(?i)([a-z_-]*(?:pass|pwd|secret|token|key|sig)[a-z_-]*)=[^&;\s]*")


def mask(key: str, value: str) -> str:
    """Return the value of a property, hidden if its name suggests a secret, else without the passwords in it."""
    if _SECRET_NAME.search(key.lower()):
        return MASK
    return _PARAMETER.sub(rf"\1={MASK}", _URI_PASSWORD.sub(rf"\1{MASK}@", value))
