"""The Spark session of this process: starts it, detects that it is dead, and releases it.

Spark's own classes keep a dead JVM forever, so that a process whose JVM was killed could never use Spark again.
"""

# ruff: noqa: SLF001 - Spark has no public way to release a dead JVM.

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from lastword.errors import UnavailableError

logger = logging.getLogger(__name__)

DEFAULT_MASTER = "local[*,3]"
"""All cores of this machine; a task whose process dies is retried twice."""

_DEFAULTS = {
    "spark.app.name": "lastword",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The work is known in advance, so it needs no adapting, which costs time in each stage.
    "spark.sql.adaptive.enabled": "false",
    "spark.python.daemon.module": "lastword.spark.daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    # Spark's own default suits clusters; here each partition is a task on one machine.
    "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1)),
}
_ENVIRONMENT = {
    # Otherwise Arrow frees memory and allocates it again with each row group.
    "MIMALLOC_PURGE_DELAY": "10000",
}


WITHOUT_SPARK = (
    "To do without Spark, set compaction.service.factory to "
    "lastword.compaction.inline:InlineCompactionServiceFactory."
)
_CONNECT_S = 5.0
"""The time that a server has to accept a connection. Spark itself would try for a minute, or for ten."""
_CONNECT_PORT = 15002


def _check_someone_listens(address: str) -> None:
    """Raise UnavailableError if `address` is a cluster's master or a Spark Connect server that does not answer."""
    kind, separator, rest = address.partition("://")
    if not separator or kind not in ("spark", "sc"):
        return
    setting = "spark.remote" if kind == "sc" else "spark.master"
    problems: list[str] = []
    # A cluster may have several masters, one of which leads.
    for each in rest.split("/")[0].split(","):
        host, colon, port = each.rpartition(":")
        if not colon:
            host, port = each, str(_CONNECT_PORT)
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
            return
        except (OSError, ValueError) as error:
            problems.append(f"{each}: {getattr(error, 'strerror', None) or error}")
    raise UnavailableError(
        f"Spark can't be started: nothing answers at {setting}={address} ({'; '.join(problems)}). Start it there, or "
        f"change {setting}. {WITHOUT_SPARK}"
    )


def borrow(settings: Mapping[str, str]) -> Any | None:
    """Return a session on the Spark that other code has started in this process, if there is one.

    It has separate settings; those of its owner's sessions stay as they are. It must not be stopped.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None or "spark.remote" in settings:
        return None
    owned = SparkSession._instantiatedSession or SparkSession(context)
    if not is_alive(owned):
        stop(owned)
        return None
    spark = owned.newSession()
    for key, value in (_DEFAULTS | dict(settings)).items():
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)
    return spark


def start(settings: Mapping[str, str], log_path: Path | None) -> Any:
    """Start a session. Spark's own output goes to a file, not to the terminal."""
    from pyspark.sql import SparkSession

    _let_py4j_log_as_itself()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Otherwise executors would start the system's Python.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    remote = settings.get("spark.remote")
    _check_someone_listens(remote or settings.get("spark.master", ""))
    builder = SparkSession.builder.remote(remote) if remote else SparkSession.builder
    if not remote:
        quiet = resources.files("lastword.compaction").joinpath("log4j2.properties")
        options = settings.get("spark.driver.extraJavaOptions", "")
        defaults = _DEFAULTS | {
            "spark.master": DEFAULT_MASTER,
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet} {options}".strip(),
        }
        for key, value in (
            defaults | {k: v for k, v in settings.items() if k != "spark.driver.extraJavaOptions"}
        ).items():
            builder = builder.config(key, value)
    else:
        for key, value in settings.items():
            if key != "spark.remote":
                builder = builder.config(key, value)
    try:
        with _stderr_to(log_path):
            spark = builder.getOrCreate()
            if not remote:
                spark.sparkContext.setLogLevel("ERROR")
                _let_accumulators_log(spark)
            return spark
    except Exception as error:
        said = message(error).removesuffix(".")
        where = "" if log_path is None or remote else f" Spark's own output is in {log_path}."
        if not remote:
            way_out = "It needs Java 17 or newer (JAVA_HOME or java on the path)."
        elif isinstance(error, ImportError):
            way_out = 'spark.remote needs more packages (grpcio among them): pip install "pyspark[connect]".'
        else:
            way_out = f"Check that spark.remote={remote} is a Spark Connect server."
        raise UnavailableError(f"Spark can't be started: {said}.{where} {way_out} {WITHOUT_SPARK}") from error


def _let_py4j_log_as_itself() -> None:
    """Let py4j log under its own name: from the root logger, its tracebacks of a dead JVM reach every terminal.

    Our error says what happened. The rest can be found under py4j's own name.
    """
    from py4j import java_gateway

    java_gateway.logging = logging.getLogger("py4j.java_gateway")


def _let_accumulators_log(spark: Any) -> None:
    """Log what the server that tasks report to would print: a traceback when the JVM goes away during a report."""

    def handle_error(*_: object) -> None:
        logging.getLogger("pyspark.accumulators").info("a task's report was cut off", exc_info=True)

    spark.sparkContext._accumulatorServer.handle_error = handle_error


@contextlib.contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """Let a child process that is started in this context write its errors to a file."""
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    saved = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.dup2(log, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
        os.close(log)


def is_alive(spark: Any) -> bool:
    """Return whether a session can be used: its JVM is there, and its context has not ended by itself."""
    return _answers(spark) and not _has_ended(spark)


def _answers(spark: Any) -> bool:
    """Return whether the JVM of a session is there."""
    context = spark.sparkContext
    java_process = getattr(context._gateway, "proc", None)
    if context._jsc is None or (java_process is not None and java_process.poll() is not None):
        return False
    try:
        context._jsc.version()
    except spark_errors():
        return False
    return True


def _has_ended(spark: Any) -> bool:
    """Return whether the context has ended by itself, in a JVM that is still there."""
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except spark_errors():
        return True


def stop(spark: Any) -> None:
    """Stop a session. Spark asks the JVM first, and keeps everything if that is dead: then release it here."""
    if spark.sparkContext._jsc is None:
        # Other code in this process has stopped it cleanly. The JVM may have another owner by now.
        return
    if _answers(spark):
        try:
            spark.stop()
            return
        except spark_errors() as error:
            logger.warning("Spark did not stop cleanly: %s", message(error))
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = spark.sparkContext
    # Without `_jsc`, `stop` only ends what is in this process.
    context._jsc = None
    context.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    java_process = getattr(gateway, "proc", None)
    if java_process is not None:
        # A JVM that hangs must not keep writing.
        java_process.kill()
        java_process.communicate()
    if gateway is not None:
        with contextlib.suppress(*spark_errors()):
            gateway.shutdown()


def default_parallelism(spark: Any, *, is_remote: bool) -> int:
    """Return how many tasks run at a time. A server that others run tells this only by a setting."""
    try:
        if is_remote:
            return int(spark.conf.get("spark.default.parallelism", "8"))
        return int(spark.sparkContext.defaultParallelism)
    except spark_errors() as error:
        raise UnavailableError(message(error)) from error


def collect(rows: Any) -> list[Any]:
    """Run a query and return its result."""
    try:
        found: list[Any] = rows.collect()
    except UnboundLocalError as error:
        # When a connection can't be made, Spark's clean-up hides the reason.
        raise UnavailableError(_GONE.format("no connection")) from error
    return found


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the errors that a call of Spark may raise, including when Spark is not there (any more)."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (UnavailableError, PySparkException, Py4JError, ConnectionError, EOFError)


_GONE = (
    "Spark no longer answers ({}): its JVM was killed, or ran out of memory. Nothing was changed; the next "
    "run starts a new one."
)


def _is_gone(error: BaseException) -> bool:
    """Return whether an error means that the JVM is gone. A call that had begun by then fails without a reason."""
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

    return isinstance(error, Py4JNetworkError | ConnectionError | EOFError) or (
        isinstance(error, Py4JError)
        and not isinstance(error, Py4JJavaError)
        and str(error).startswith("An error occurred while calling")
    )


def message(error: BaseException) -> str:
    """Return the first meaningful line of an error that may carry a Java stack trace."""
    if _is_gone(error):
        lines = str(error).splitlines() or [type(error).__name__]
        return _GONE.format(lines[0])
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__
