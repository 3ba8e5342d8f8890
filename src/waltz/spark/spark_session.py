"""One call to a Spark session that works: Java found, workers on this Python, quiet, local.

Owns what must be decided before a Java process exists, if this process starts it. Decisions made
elsewhere stand: an existing session, `spark-submit` and its arguments, a server of Spark Connect,
the environment, the arguments of the call.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from waltz.errors import ConfigurationError
from waltz.spark.cache import cache_directory, make_once
from waltz.spark.java import packaged_java, settle_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANYWHERE: Final = {"spark.sql.session.timeZone": "UTC"}
"""Settings of every session that is started here, wherever it runs."""

LOCAL: Final = {
    "spark.driver.extraJavaOptions": "-Xss16m",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.python.worker.reuse": "true",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Spark's defaults are made for clusters; these are for one machine, whose Java is started here.
The stack size keeps a query that is stopped in the middle from overflowing it."""

MASTER: Final = "spark.master"
LOCAL_MASTER: Final = "local[*]"
STARTED: Final = "PYSPARK_GATEWAY_PORT"
"""The variable that `spark-submit` sets for the program that it runs: its Java exists already."""

LOGGING: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.query.name = org.apache.spark.sql.catalyst.trees.SQLQueryContextLogger
logger.query.level = off
"""
"""The gateway announces a change of level unless it has one of its own already. The query context
logger repeats every failed query as a line of JSON of several kilobytes."""


def spark_session(app: str, **conf: object) -> SparkSession:
    """Return this process's Spark session, or start one named `app`.

    An existing session is used unchanged; so are the settings of `spark-submit`, of
    `PYSPARK_SUBMIT_ARGS` and of `spark-defaults.conf`: only settings that are not set there are set
    here. With `SPARK_REMOTE` the session is one of Spark Connect. Otherwise it is started on local
    cores unless `conf` has `spark.master`. `conf` are Spark's settings and override all others:
    `spark_session("job", **{"spark.driver.memory": "2g"})`. Memory and Java options take effect
    only if this call starts Java. The session becomes the active one of the calling thread: a
    thread that writes to a log calls this. Raises ConfigurationError: PySpark or a usable Java is
    missing, and the text says what to install; `spark.master` is given for a session of Connect.
    """
    if find_spec("pyspark") is None:
        raise ConfigurationError(
            "PySpark is missing: run `pip install '.[spark]'` in a checkout of Waltz"
        )
    given = {key: str(value) for key, value in conf.items()}
    remote = given.get("spark.remote", os.environ.get("SPARK_REMOTE"))
    if _has_session():
        session = _built(None, given)
    elif remote is not None:
        if MASTER in given:
            raise ConfigurationError(
                f"{MASTER} is {given[MASTER]}, and SPARK_REMOTE or spark.remote is {remote}; a"
                f" session has one of them: unset SPARK_REMOTE, or leave {MASTER} out"
            )
        session = _connected_session(app, given, remote)
    elif STARTED in os.environ:
        session = _submitted_session(app, given)
    else:
        session = _own_session(app, given)
    if hasattr(session, "_jsparkSession"):
        # Spark looks a data source up for writing in the active session of the Java thread, and
        # each thread of this process has a Java thread of its own; only the first was made active.
        assert session._jvm is not None  # noqa: SLF001
        sessions = getattr(session._jvm, "org.apache.spark.sql.SparkSession")  # noqa: SLF001
        sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001
    return session


def _has_session() -> bool:
    """Return whether this process has a session; one that has not imported PySpark has none."""
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if getattr(SparkContext, "_active_spark_context", None) is not None:
        return True
    return "SPARK_CONNECT_MODE_ENABLED" in os.environ and (
        SparkSession.getActiveSession() is not None
    )


def _built(app: str | None, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession  # the environment must be settled before

    builder = SparkSession.builder
    if app is not None:
        builder = builder.appName(app)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _connected_session(app: str, given: Mapping[str, str], remote: str) -> SparkSession:
    """A session of Spark Connect: a server that is elsewhere has settings of its own."""
    if not remote.startswith("local"):
        return _built(app, given)
    settle_environment(os.environ, remote)
    return _built(app, {**ANYWHERE, **given})


def _submitted_session(app: str, given: Mapping[str, str]) -> SparkSession:
    """A session on the Java that `spark-submit` has started, with its settings."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001
    known = SparkConf()
    if (known.get(MASTER, None) or LOCAL_MASTER).startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    unset = {key: value for key, value in ANYWHERE.items() if not known.contains(key)}
    named = known.get("spark.app.name", None)
    return _built(None if named else app, {**unset, **given})


def _own_session(app: str, given: Mapping[str, str]) -> SparkSession:
    """A session on a Java that is started here."""
    decided = {**decided_settings(os.environ), **given}
    settings = own_settings(decided)
    settle_environment(os.environ, settings.get(MASTER, decided.get(MASTER, LOCAL_MASTER)))
    named = "spark.app.name" in decided
    return _built(None if named else app, {**settings, **given})


def own_settings(decided: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session that is started here, without those decided already."""
    settings = {MASTER: LOCAL_MASTER, **ANYWHERE}
    if decided.get(MASTER, LOCAL_MASTER).startswith("local"):
        settings |= LOCAL
    return {key: value for key, value in settings.items() if key not in decided}


def decided_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the environment: arguments for `spark-submit`, and files of
    defaults."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--conf", "-c", action="append", default=[])
    parser.add_argument("--properties-file")
    for option in SUBMIT_OPTIONS:
        parser.add_argument(option)
    found, _ = parser.parse_known_args(shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", "")))
    folder = environment.get("SPARK_CONF_DIR")
    if folder is None and "SPARK_HOME" in environment:
        folder = str(Path(environment["SPARK_HOME"], "conf"))
    decided: dict[str, str] = {}
    if found.properties_file is not None:
        decided |= _properties(Path(found.properties_file))
    elif folder is not None:
        decided |= _properties(Path(folder, "spark-defaults.conf"))
    decided |= dict(each.split("=", 1) for each in found.conf if "=" in each)
    for option, key in SUBMIT_OPTIONS.items():
        value = getattr(found, option.removeprefix("--").replace("-", "_"))
        if value is not None:
            decided[key] = value
    return decided


SUBMIT_OPTIONS: Final = {
    "--master": MASTER,
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--remote": "spark.remote",
}
"""Arguments of `spark-submit` that are settings."""


def _properties(path: Path) -> dict[str, str]:
    """Return the settings in a file of Spark's defaults; none if the file does not exist."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (re.split(r"[\s=:]+", line.strip(), maxsplit=1) for line in lines)
    return {
        pair[0]: pair[1] for pair in pairs if len(pair) == 2 and not pair[0].startswith(("#", "!"))
    }


def settle_environment(environment: MutableMapping[str, str], master: str) -> None:
    """Prepare `environment` for the Java that this process is about to start."""
    cache = cache_directory(Path(sys.prefix), Path(tempfile.gettempdir()))
    prepare_environment(environment, cache, local=master.startswith("local"))


def prepare_environment(environment: MutableMapping[str, str], cache: Path, *, local: bool) -> None:
    """Set in `environment` the variables that Spark's launcher and its Python workers read."""
    environment["JAVA_HOME"] = str(settle_java(environment, cache, packaged=packaged_java()))
    # Without this the workers run whatever python3 comes first on the PATH.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    if local:
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # A cluster wants the archives that the overlay replaces by folders.
        environment.setdefault("SPARK_HOME", str(overlay(cache)))


def overlay(cache: Path) -> Path:
    """Return a Spark home in `cache` whose Python workers import the installed, compiled PySpark.

    Without it every worker imports PySpark from an archive and compiles it again, which doubles the
    start of every query.
    """
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent

    def fill(directory: Path) -> None:
        for name in ("bin", "jars", "sbin", "data"):
            (directory / name).symlink_to(installed / name)
        libraries = directory / "python" / "lib"
        libraries.mkdir(parents=True)
        for archive in (installed / "python" / "lib").glob("*.zip"):
            (libraries / archive.name).symlink_to(installed.parent)
        (directory / "conf").mkdir()
        (directory / "conf" / "log4j2.properties").write_text(LOGGING)

    # Another release is another overlay: the content behind the links is not looked at.
    version = (installed / "version.py").read_bytes()
    key = sha256(bytes(installed) + version + LOGGING.encode()).hexdigest()[:16]
    return make_once(cache / f"spark-{key}", fill)
