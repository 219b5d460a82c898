"""`lastword takeover`: make this data folder the owner of topics that belong to another one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.options import Session, YesOption, argument, command
from lastword.cli.output import count, table
from lastword.errors import InvalidError, UnknownTopicError

if TYPE_CHECKING:
    from lastword.log import Log
    from lastword.maintenance.takeover import TakenOver
    from lastword.segments.model import Owner, TopicInfo

TopicsArgument = Annotated[list[str] | None, argument("[TOPIC]...", "The topics.")]
AllOption = Annotated[
    bool, typer.Option("--all", help="Every topic of the catalog that belongs to another folder.")
]


def register(app: typer.Typer) -> None:
    command(
        app,
        "takeover",
        examples=[
            "lastword takeover users",
            "lastword takeover users orders --yes",
            "lastword takeover --all --yes",
        ],
    )(takeover)


def takeover(
    session: Session, topics: TopicsArgument = None, all_topics: AllOption = False, yes: YesOption = False
) -> None:
    """Take over topics that belong to another data folder.

    Both folders are on the same catalog, and this one becomes the owner. Without --yes it only shows the owners.
    Afterwards the other folder can't commit to the topics, and its broker stops acknowledging within seconds. Records
    that it acknowledged but has not sealed stay in its folder: `lastword wal export` prints them there.

    A data folder that does not exist yet is created, if its settings (--config, or lastword.yaml in it) name a catalog.
    """
    if bool(topics) == all_topics:
        raise InvalidError("Name the topics to take over, or give --all.")
    _begin(session)
    with session.read() as log:
        found = _foreign(log, topics)
    if not found:
        session.output.show({"topics": [], "taken_over": False}, "No topic belongs to another data folder.")
        return
    if not yes:
        session.output.show(
            {"topics": [_data(info) for info in found], "taken_over": False},
            _table([(info.name, info.owner) for info in found]),
            f"{_consequence(len(found))} Nothing was changed; give --yes to take over.",
        )
        return
    with session.write() as log:
        done = [each for info in found if (each := log.take_over(info.name)) is not None]
    session.output.show(
        {"topics": [asdict(each) for each in done], "taken_over": True},
        _table([(each.topic, each.before) for each in done]),
        f"{count(len(done), 'topic')} taken over. {_rest(done)}",
        *(f"An old WAL of {each.topic} was set aside: {each.set_aside}" for each in done if each.set_aside),
    )


def _begin(session: Session) -> None:
    """Create the data folder if it is new: if the old host is gone, this one has nothing but settings."""
    from lastword.folder.paths import FORMAT_FILE
    from lastword.segments.storage import Storage, load_config

    folder = session.data_folder
    if (
        not (folder / FORMAT_FILE).exists()
        and Storage.of(folder, load_config(folder, session.config)).is_shared
    ):
        session.write(create=True).close()


def _foreign(log: Log, topics: list[str] | None) -> list[TopicInfo]:
    infos = {info.name: info for info in log.topic_infos(include_internal=True)}
    if topics is None or not topics:
        return [info for info in infos.values() if log.is_foreign(info)]
    for name in topics:
        if name not in infos:
            raise UnknownTopicError(f"there is no topic {name!r}")
        if not log.is_foreign(infos[name]):
            raise InvalidError(f"The topic {name!r} already belongs to this data folder.")
    return [infos[name] for name in dict.fromkeys(topics)]


def _consequence(topics: int) -> str:
    them = "it" if topics == 1 else "them"
    return (
        f"Taking {them} over raises the epoch: the folder above can't commit to {them} any more, and its broker stops "
        f"acknowledging within seconds. Stop it first, or let it seal (`lastword topic seal`): records that it "
        f"acknowledged but has not sealed stay in its folder, where `lastword wal export` prints them."
    )


def _rest(done: list[TakenOver]) -> str:
    places = {each.before.path: each.before.host for each in done if each.before is not None}
    where = "; ".join(
        f"on {host}, `lastword wal export TOPIC --data {path}`" for path, host in places.items()
    )
    return f"To print records that were acknowledged but not sealed there: {where}." if where else ""


def _table(rows: list[tuple[str, Owner | None]]) -> Any:
    return table(
        ["topic", "belongs to", "at", "on", ">epoch"],
        [
            (name, owner.folder_id[:8], owner.path, owner.host, owner.epoch)
            if owner is not None
            else (name, "nobody", None, None, None)
            for name, owner in rows
        ],
    )


def _data(info: TopicInfo) -> dict[str, Any]:
    return {"topic": info.name, "owner": None if info.owner is None else asdict(info.owner)}
