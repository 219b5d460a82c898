"""`lastword config show`: each effective setting and its source."""

from __future__ import annotations

from typing import Annotated, Any

from lastword.cli.options import Session, command, group, option
from lastword.cli.output import styled, table

app = group(
    "config",
    help="Show the effective settings.",
    examples=["lastword config show", "lastword config show --topic users"],
)


@command(
    app,
    "show",
    examples=[
        "lastword config show",
        "lastword config show --topic users",
        "lastword config show --config lastword.yaml --json",
    ],
)
def show(
    session: Session,
    topic: Annotated[str | None, option("--topic", "NAME", "The settings of this topic.")] = None,
) -> None:
    """Show every setting, its value and its source.

    Without --topic: the settings that topics inherit, and the broker's own. Secrets are masked.
    """
    from lastword.operations.table import BROKER_CONFIG, TOPIC_CONFIG

    backend = session.backend
    settings = backend.run(BROKER_CONFIG) if topic is None else backend.run(TOPIC_CONFIG, topic)
    session.output.show(settings, table(["setting", "value", "from"], [_row(each) for each in settings]))


def _row(setting: dict[str, Any]) -> list[object]:
    source = " ".join(filter(None, (setting["source"], setting["where"])))
    value = setting["value"] or "not set"
    if setting["source"] == "default":
        return [setting["key"], value, styled(source, "dim")]
    return [styled(each, "bold") for each in (setting["key"], value, source)]
