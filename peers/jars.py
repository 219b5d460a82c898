"""Fetches the jars of a peer by Maven's coordinates (pom.xml) into a cache folder outside the repository.

    python -m peers.jars kafka

The folder is ~/.cache/lastword/peers, or what LASTWORD_PEERS names. A folder that is complete is not fetched again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

_POM = Path(__file__).with_name("pom.xml")


class UnreachableError(Exception):
    """Maven is not there, or its repository can't be reached; the message says which."""


def cache() -> Path:
    named = os.environ.get("LASTWORD_PEERS")
    return Path(named) if named else Path.home() / ".cache" / "lastword" / "peers"


def jars(profile: str) -> Path:
    """The folder with the jars of a profile of pom.xml."""
    version = hashlib.sha256(_POM.read_bytes()).hexdigest()[:12]
    folder = cache() / f"{profile}-{version}"
    if folder.exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise UnreachableError(
            f"peer '{profile}': mvn is not installed (Debian: apt-get install maven), so its jars can't be fetched"
        )
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    fetched = subprocess.run(
        [
            *(maven, "-q", "-B", "-f", str(_POM), "-P", profile),
            *("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={unfinished}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if fetched.returncode != 0 or not any(unfinished.glob("*.jar")):
        shutil.rmtree(unfinished, ignore_errors=True)
        reason = next((line for line in fetched.stdout.splitlines() if "ERROR" in line), "no jars came")
        raise UnreachableError(f"peer '{profile}': Maven could not fetch its jars: {reason[:400]}")
    try:
        unfinished.rename(folder)
    except OSError:
        # Another process was here first.
        shutil.rmtree(unfinished, ignore_errors=True)
        if not folder.exists():
            raise
    return folder


def version_of(name: str) -> str:
    """A version that pom.xml names, as <name.version>."""
    found = re.search(rf"<{name}\.version>([^<]+)<", _POM.read_text())
    assert found is not None, name
    return found[1]


def python_with(requirement: str) -> Path:
    """The interpreter of a venv in the cache that has a package of PyPI, for what needs another version than ours."""
    folder = cache() / re.sub(r"[^A-Za-z0-9.]+", "-", requirement)
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    venv.create(folder, with_pip=True, clear=True)
    installed = subprocess.run(
        [python, "-m", "pip", "install", "-q", requirement], capture_output=True, text=True, check=False
    )
    if installed.returncode != 0:
        raise UnreachableError(f"pip could not install {requirement}: {installed.stderr[-400:]}")
    (folder / "complete").touch()
    return python


def main() -> int:
    for profile in sys.argv[1:] or ["kafka"]:
        try:
            folder = jars(profile)
        except UnreachableError as error:
            print(f"skipped: {error}")
            return 1
        print(f"{profile}: {len(list(folder.glob('*.jar')))} jars in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
