"""The API's reference, as a page for people. It loads nothing from elsewhere: a script could do all that its reader may."""

from __future__ import annotations

from html import escape
from typing import Any


def page(schema: dict[str, Any]) -> str:
    """Make the page from the OpenAPI description."""
    by_tag: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            (tag,) = operation["tags"]
            by_tag.setdefault(tag, []).append(_row(method, path, operation, schema))
    sections = "".join(
        f"<h2>{escape(tag)}</h2><table>{''.join(rows)}</table>" for tag, rows in by_tag.items()
    )
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>{escape(schema['info']['summary'])} Changes are sent as <code>application/json</code>. "
        f'For programs: <a href="/openapi.json">/openapi.json</a>.</p>{sections}</html>'
    )


_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%}"
    "td{padding:.3rem .8rem .3rem 0;vertical-align:top;border-top:1px solid #ddd}code{white-space:nowrap}"
    "small{color:#666}"
)


def _row(method: str, path: str, operation: dict[str, Any], schema: dict[str, Any]) -> str:
    fields = _fields(operation, schema)
    says = f"<br><small>{escape(fields)}</small>" if fields else ""
    return (
        f"<tr><td><code>{method.upper()}</code></td><td><code>{escape(path)}</code></td>"
        f"<td>{escape(operation['description'])}{says}</td></tr>"
    )


def _fields(operation: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return the names of the parameters in the query and the fields in the body."""
    query = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    model = schema["components"]["schemas"].get(body.get("$ref", "").rpartition("/")[2], {})
    parts = [f"query: {', '.join(query)}"] if query else []
    if model.get("properties"):
        parts.append(f"body: {', '.join(model['properties'])}")
    return "; ".join(parts)
