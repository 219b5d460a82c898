"""Settings as users write them: YAML text or nested mappings, split into one entry per value.

A mapping in a mapping is the same as keys joined by dots. YAML scalars stay the text that was written: `010` and `no`
mean what the user sees, whatever a version of YAML makes of them, and a password of digits keeps its zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from lastword.errors import InvalidConfigError

_STANDARD_TAG = "tag:yaml.org,2002:"
_MERGE_TAG = f"{_STANDARD_TAG}merge"
_NULL_TAG = f"{_STANDARD_TAG}null"


@dataclass(frozen=True, slots=True)
class Entry:
    """A value under its keys: None for no value, {} for an empty mapping, a list of texts for a list."""

    path: tuple[str, ...]
    value: object
    places: tuple[str, ...]
    """The place of each key of the path."""

    @property
    def where(self) -> str:
        return self.places[-1]

    @property
    def key(self) -> str:
        return ".".join(self.path)

    def below(self, key: str, value: object, where: str) -> Entry:
        return Entry((*self.path, key), value, (*self.places, where))


def read_file(path: Path) -> Iterator[Entry]:
    """Yield the entries of a YAML file, each with its line."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InvalidConfigError(f"{path}: can't be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InvalidConfigError(f"{path}:{line}: is not UTF-8 text") from error
    return read_yaml(text, name=str(path))


def read_yaml(text: str, *, name: str) -> Iterator[Entry]:
    root = _compose(text, name=name)
    if root is None or root.tag == _NULL_TAG:
        return
    if not isinstance(root, yaml.MappingNode):
        raise InvalidConfigError(f"{_place(name, root)}: settings must be written as 'key: value'")
    if root.value:
        yield from _walk_node(root, Entry((), None, ()), name=name, within=())


def read_mapping(mapping: Mapping[str, object], *, where: str) -> Iterator[Entry]:
    """Yield the entries of a mapping, all with the same place."""
    if mapping:
        yield from _walk_mapping(mapping, Entry((), None, ()), where=where)


def _compose(text: str, *, name: str) -> yaml.Node | None:
    # Errors give only the problem and its line number, never the line itself: it may contain a password.
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise InvalidConfigError(f"{name}{line}: is not YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = f":{text.count(chr(10), 0, error.position) + 1}"
        raise InvalidConfigError(f"{name}{line}: is not YAML: {error.reason}") from None
    except RecursionError:
        raise InvalidConfigError(f"{name}: is nested too deeply") from None
    return root


def _walk_node(
    node: yaml.MappingNode, above: Entry, *, name: str, within: tuple[int, ...]
) -> Iterator[Entry]:
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        where = _place(name, key_node)
        key = _key_text(key_node, where=where)
        if key in lines:
            full = ".".join((*above.path, key))
            raise InvalidConfigError(f"{where}: {full!r} is given twice, first in line {lines[key]}")
        lines[key] = key_node.start_mark.line + 1
        _check_tag(value_node, where=where)
        if isinstance(value_node, yaml.MappingNode) and value_node.value:
            if id(value_node) in (*within, id(node)):
                raise InvalidConfigError(f"{where}: {key!r} contains itself")
            yield from _walk_node(
                value_node, above.below(key, None, where), name=name, within=(*within, id(node))
            )
        else:
            yield above.below(key, _leaf(value_node, where=where), where)


def _walk_mapping(mapping: Mapping[str, object], above: Entry, *, where: str) -> Iterator[Entry]:
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise InvalidConfigError(f"{where}: {key!r} is not the name of a setting, names are text")
        if isinstance(value, Mapping) and value:
            yield from _walk_mapping(value, above.below(key, None, where), where=where)
        else:
            yield above.below(key, value, where)


def _key_text(node: yaml.Node, *, where: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise InvalidConfigError(f"{where}: a list or a mapping can't be the name of a setting")
    if node.tag == _MERGE_TAG:
        raise InvalidConfigError(
            f"{where}: YAML's '<<' is not supported; put shared settings at the top level or in a namespace"
        )
    return str(node.value)


def _leaf(node: yaml.Node, *, where: str) -> object:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_tag(item, where=where)
        return [_leaf(item, where=where) if isinstance(item, yaml.ScalarNode) else {} for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return {}
    return None if node.tag == _NULL_TAG else str(node.value)


def _check_tag(node: yaml.Node, *, where: str) -> None:
    # A user would expect a tag such as !env to do something.
    if not node.tag.startswith(_STANDARD_TAG):
        raise InvalidConfigError(f"{where}: the YAML tag {node.tag!r} is not supported")


def _place(name: str, node: yaml.Node) -> str:
    return f"{name}:{node.start_mark.line + 1}"
