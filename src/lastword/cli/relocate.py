"""`lastword relocate`: make a data folder that was moved or copied usable where it is now."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.options import Session, YesOption, command
from lastword.cli.output import count, facts

if TYPE_CHECKING:
    from lastword.maintenance.relocating import Relocation

AsCopyOption = Annotated[
    bool,
    typer.Option(
        "--as-copy",
        help="The original still exists where this host can't see it: make this an independent folder.",
    ),
]


def register(app: typer.Typer) -> None:
    command(
        app,
        "relocate",
        examples=["lastword relocate --data copy", "lastword relocate --data /mnt/clone --as-copy --yes"],
    )(relocate)


def relocate(session: Session, as_copy: AsCopyOption = False, yes: YesOption = False) -> None:
    """Make a moved or copied data folder usable where it is now.

    A copy becomes an independent folder with a new identity; the original is not touched. A folder that was moved keeps
    its identity. The metadata of its tables is rewritten for the new place; data files stay as they are.
    """
    from lastword.maintenance import relocating
    from lastword.segments.storage import Storage, check_folder, load_config

    folder = session.data_folder.absolute()
    check_folder(folder, create=False)
    planned = relocating.plan(Storage.of(folder, load_config(folder, session.config)), as_copy=as_copy)
    if planned.standing == "home":
        session.output.show(
            _data(planned, done=False), f"{folder} is where it belongs: there is nothing to relocate."
        )
        return
    if not yes and not session.output.json:
        session.output.show(None, facts(_facts(planned)))
    question = f"Make {folder} {_becomes(planned)}?"
    if not session.confirm(question, yes=yes):
        session.output.show(_data(planned, done=False), "Nothing was changed.")
        raise typer.Exit(1)
    done = relocating.relocate(folder, config=session.config, as_copy=as_copy)
    session.output.show(
        _data(done, done=True),
        f"{folder} is {_becomes(done)} now (id {done.id}); "
        f"the metadata of {count(len(done.topics), 'topic')} was rewritten.",
        *(f"{path} could not be read before, and still can't be." for path in done.damaged),
    )
    if done.damaged:
        raise typer.Exit(1)


def _becomes(relocation: Relocation) -> str:
    is_copy = relocation.standing == "copy"
    return "an independent folder" if is_copy else f"the new place of {relocation.original}"


def _facts(planned: Relocation) -> list[tuple[str, str]]:
    is_copy = planned.standing == "copy"
    return [
        ("folder", planned.folder),
        ("copy of" if is_copy else "moved from", planned.original),
        ("identity", "a new one" if is_copy else f"stays {planned.id}"),
        ("topics to rewrite", ", ".join(planned.topics) or "none: their files are outside the folder"),
    ]


def _data(relocation: Relocation, *, done: bool) -> dict[str, Any]:
    return {**asdict(relocation), "relocated": done}
