"""`lastword erase`: remove every trace of keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from lastword.cli.options import Session, TopicArgument, YesOption, command, option
from lastword.cli.output import count, facts, heading, styled
from lastword.errors import InvalidError
from lastword.operations.options import decoded


def register(app: typer.Typer) -> None:
    command(
        app,
        "erase",
        examples=[
            "lastword erase users --key alice",
            "lastword erase users --key alice --key bob --yes",
            "lastword erase users --keys-file to-be-forgotten.txt",
        ],
    )(erase)


def erase(
    session: Session,
    name: TopicArgument,
    key: Annotated[list[str] | None, option("--key", "KEY", "A key, as text; can be repeated.")] = None,
    keys_file: Annotated[
        Path | None, option("--keys-file", "FILE", "A file of keys, one per line. Empty lines are skipped.")
    ] = None,
    key_base64: Annotated[
        list[str] | None,
        option("--key-base64", "BASE64", "A key in base64, if it is not text; can be repeated."),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Permanently remove every record of some keys from a topic.

    This includes sealed files, older snapshots and the WAL; time travel to before the erasure is no longer possible.
    The exit code is 1 if something is left; the report says what.
    """
    from lastword.operations.table import ERASE, TOPIC_CONFIG

    keys = _keys(key or [], keys_file, key_base64 or [])
    # Ask before locking anything: no other process should have to wait for an answer.
    backend = session.backend
    backend.run(TOPIC_CONFIG, name)
    question = (
        f"Permanently erase every record of {count(len(keys), 'key')} from {name}, and with them all its older "
        f"snapshots?"
    )
    if not session.confirm(question, yes=yes):
        session.output.show({"topic": name, "erased": False}, "Nothing was erased.")
        raise typer.Exit(1)
    with session.output.stages({"erase": (f"Erasing from {name}", "segments")}) as progress:
        report = backend.run(ERASE, name, keys, progress=progress)
    session.output.show(report, *_parts(report))
    if report["left"]:
        raise typer.Exit(1)


def _keys(texts: list[str], file: Path | None, encoded: list[str]) -> list[bytes]:
    keys = [os.fsencode(each) for each in texts]
    keys += [decoded(each, "--key-base64") for each in encoded]
    if file is not None:
        try:
            keys += [line for line in file.read_bytes().split(b"\n") if line]
        except OSError as error:
            raise InvalidError(f"Can't read {file}: {error.strerror}") from error
    if not keys:
        raise InvalidError("No key was given to erase; give --key, --key-base64 or --keys-file.")
    return list(dict.fromkeys(keys))


def _parts(report: dict[str, Any]) -> list[Any]:
    topic, keys = report["topic"], count(report["keys"], "key")
    if report["records_erased"]:
        said = f"Erased {count(report['records_erased'], 'record')} of {keys} from {topic}."
    else:
        said = f"No sealed record of {topic} was found for {keys}."
    parts: list[Any] = [
        said,
        facts(
            [
                ("files rewritten", f"{report['files_rewritten']:,}"),
                ("files removed", f"{report['files_removed']:,}"),
                ("snapshots expired", f"{report['snapshots_expired']:,}"),
                ("WAL files removed", f"{report['wal_files_removed']:,}"),
            ]
        ),
    ]
    if report["left"]:
        return [
            *parts,
            heading("Left"),
            *(styled(each, "red") for each in report["left"]),
            "The erasure is not complete. The worker resumes it, or the same command does.",
        ]
    return [*parts, "No byte of them is left."]
