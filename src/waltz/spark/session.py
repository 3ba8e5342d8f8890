"""One call to a Spark session that works: Java settled, workers on this Python, quiet, local.

Owns what must be decided before a Java process exists. Where the user has decided already, in the
environment or in the arguments, that stands.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import MutableMapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from waltz.errors import ConfigurationError
from waltz.spark.cache import cache_directory, make_once
from waltz.spark.java import packaged_java, settle_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final = {
    "spark.driver.extraJavaOptions": "-Xss16m",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.python.worker.reuse": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Spark's defaults are made for clusters; these are for one machine. The stack size keeps a query
that is stopped in the middle from overflowing it, and the checkpoint file manager, which is for
local disks, saves a third of a micro-batch."""

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
    """Return the session named `app`, started on local cores unless `conf` has `spark.master`.

    `conf` are Spark's settings and go over ours: `spark_session("job", **{"spark.driver.memory":
    "2g"})`. Memory and Java options take effect only if this process has no session yet. The
    session is made the active one of the calling thread: a thread that writes to a log calls this.
    Raises ConfigurationError: PySpark or a usable Java is missing; the text says what to install.
    """
    if find_spec("pyspark") is None:
        raise ConfigurationError("PySpark is missing: run `pip install 'waltz-log[spark]'`")
    settings = {**SETTINGS, "spark.master": "local[*]", **{key: str(conf[key]) for key in conf}}
    settings.setdefault("spark.sql.shuffle.partitions", str(os.cpu_count() or 1))
    cache = cache_directory(Path(sys.prefix), Path(tempfile.gettempdir()))
    prepare_environment(os.environ, cache, local=settings["spark.master"].startswith("local"))
    from pyspark.sql import SparkSession  # the environment must be settled before

    builder = SparkSession.builder.appName(app)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    # Spark looks a data source up for writing in the active session of the Java thread, and each
    # thread of this process has a Java thread of its own; only the first was made active.
    sessions = getattr(session._jvm, "org.apache.spark.sql.SparkSession")  # noqa: SLF001
    sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001
    return session


def prepare_environment(environment: MutableMapping[str, str], cache: Path, *, local: bool) -> None:
    """Set in `environment` what Spark's launcher and its Python workers read from it."""
    environment["JAVA_HOME"] = str(settle_java(environment, cache, packaged=packaged_java()))
    # Without this the workers run whatever python3 comes first on the PATH.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    if local:
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # A cluster wants the archives that the overlay replaces by folders.
        environment.setdefault("SPARK_HOME", str(overlay(cache)))


def overlay(cache: Path) -> Path:
    """Return a Spark home in `cache` whose Python workers import the installed, compiled PySpark.

    Without it every worker imports PySpark from an archive and compiles it anew, which doubles the
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

    # Another release is another overlay: the content of what the links lead to is not looked at.
    version = (installed / "version.py").read_bytes()
    key = sha256(bytes(installed) + version + LOGGING.encode()).hexdigest()[:16]
    return make_once(cache / f"spark-{key}", fill)
