"""`lastword config show`: each effective setting and where it comes from."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli.options import SETTINGS_FILE, Session, command, group
from lastword.cli.output import styled, table

if TYPE_CHECKING:
    from lastword.config import EffectiveSetting

app = group(
    "config",
    help="Show the settings that hold.",
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
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="NAME", help="What holds for this topic.", show_default=False),
    ] = None,
) -> None:
    """Show every setting, its value and where that comes from.

    Without a topic: what topics inherit, and the broker's own settings. Secrets are masked.
    """
    if topic is not None:
        with session.read() as log:
            settings = log.explain_config(topic)
    else:
        settings = _broker_settings(session)
    session.output.show(
        [asdict(each) for each in settings],
        table(["setting", "value", "from"], [_row(each) for each in settings]),
    )


def _broker_settings(session: Session) -> list[EffectiveSetting]:
    # Not by opening the log: the settings can be looked at before there is one.
    from lastword.config import BrokerConfig

    own = session.data_folder / SETTINGS_FILE
    return BrokerConfig.load(session.config or (own if own.exists() else None)).explain()


def _row(setting: EffectiveSetting) -> list[object]:
    source = " ".join(filter(None, (setting.source, setting.where)))
    value = setting.value or "not set"
    if setting.source == "default":
        return [setting.key, value, styled(source, "dim")]
    return [styled(each, "bold") for each in (setting.key, value, source)]
