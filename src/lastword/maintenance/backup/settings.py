"""The settings of a restored folder: those of the backup, without the location of the original's tables."""

from __future__ import annotations

import json

import yaml

from lastword.segments.fileio import io_properties

_CATALOG = "catalog"
_WAREHOUSE = "warehouse"


def restored(text: str | None, warehouse: str | None) -> str | None:
    """Return the text of a settings file for a restored folder, or None if it needs none.

    The catalog and the warehouse of the original stay with the original. Without these settings the restored folder has
    its own inside. The settings for access to an object store are kept.
    """
    kept = text if text is None else _without_places(text)
    if warehouse is None:
        return kept
    return f"{kept or ''}{_WAREHOUSE}: {json.dumps(warehouse)}\n"


def _without_places(text: str) -> str:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return text
    before = _count(root)
    root.value = [(key, value) for key, value in root.value if _stays(key, value)]
    if _count(root) == before:
        # Keep the text as the user wrote it, with all comments.
        return text if text.endswith("\n") else f"{text}\n"
    return yaml.serialize(root, Dumper=yaml.SafeDumper) if root.value else ""


def _stays(key: yaml.Node, value: yaml.Node) -> bool:
    if key.value == _WAREHOUSE:
        return False
    if key.value == _CATALOG and isinstance(value, yaml.MappingNode):
        value.value = [each for each in value.value if _reaches_files(each[0].value)]
        return bool(value.value)
    name = str(key.value)
    return not name.startswith(f"{_CATALOG}.") or _reaches_files(name.removeprefix(f"{_CATALOG}."))


def _reaches_files(key: str) -> bool:
    return bool(io_properties({key: ""}))


def _count(root: yaml.MappingNode) -> int:
    return sum(_count(value) if isinstance(value, yaml.MappingNode) else 1 for _, value in root.value)
