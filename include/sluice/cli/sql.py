"""`python -m sluice sql`: starts Spark's SQL shell on the catalog, configured as for the steps.

In: a statement, or none for an interactive shell. Out: its output and exit code.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

# The shell prints errors itself. Without an appender Spark would ignore the file.
LOG4J = """\
appender.console.type = Console
appender.console.name = console
rootLogger.level = off
rootLogger.appenderRef.console.ref = console
"""


def add_command(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("sql", help="open Spark's SQL shell on the catalog, or run one statement")
    parser.add_argument("statement", nargs="?", metavar="STATEMENT", help="separate several by semicolons")
    parser.set_defaults(run=_sql)


def _sql(given: argparse.Namespace) -> int:
    import pyspark

    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.iceberg import table_names
    from sluice.ingest import session

    name = table_names.catalog_name()
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    # The shell creates a warehouse folder where it starts. Credentials go into a file, never onto the command line.
    with tempfile.TemporaryDirectory(prefix="sluice-sql-") as folder:
        logging = Path(folder, "log4j2.properties")
        logging.write_text(LOG4J, encoding="utf-8")
        conf = {
            **session.DEFAULTS,
            **iceberg_catalog.spark_conf(),
            "spark.master": "local[*]",
            "spark.sql.defaultCatalog": name,
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.cli.print.header": "true",
            "spark.jars": ",".join(session.spark_jars()),
        }
        properties = Path(folder, "spark.conf")
        properties.touch(0o600)
        properties.write_text("".join(f"{key} {_escaped(value)}\n" for key, value in conf.items()), encoding="utf-8")
        command = [str(home / "bin" / "spark-sql"), "--properties-file", str(properties)]
        command += ["--driver-java-options", shlex.quote(f"-Dlog4j2.configurationFile={logging}")]
        if given.statement:
            command += ["-e", given.statement]
        return 3 if subprocess.run(command, cwd=folder, check=False).returncode else 0


def _escaped(value: str) -> str:
    """Escape a value for java.util.Properties in a UTF-8 file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
