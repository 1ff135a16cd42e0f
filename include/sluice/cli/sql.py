"""`sluice sql`: starts Spark's SQL shell on the catalog, configured as for the steps.

In: a statement, or none for an interactive shell. Out: its output and exit code.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
from pathlib import Path
from typing import Any

from sluice.cli.arguments import add_command

# The shell prints errors itself. Without an appender Spark would ignore the file.
LOG4J = """\
appender.console.type = Console
appender.console.name = console
rootLogger.level = off
rootLogger.appenderRef.console.ref = console
"""


def add_commands(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "sql",
        _sql,
        "open Spark's SQL shell on the catalog, or run one statement",
        ["", "'SELECT * FROM shop.orders LIMIT 10'"],
    )
    parser.add_argument("statement", nargs="?", metavar="STATEMENT", help="separate several by semicolons")


def _sql(given: argparse.Namespace) -> int:
    return 3 if run_shell(given.statement).returncode else 0


def run_shell(statement: str | None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run statements in Spark's SQL shell, or an interactive shell if there is none.

    Args:
        statement: the statements, separated by semicolons.
        options: of `subprocess.run`.
    """
    from sluice.cli import spark
    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.iceberg import table_names
    from sluice.ingest import session

    spark.set_java()
    conf = {
        **session.DEFAULTS,
        **iceberg_catalog.spark_conf(),
        "spark.master": spark.MASTER,
        "spark.sql.defaultCatalog": table_names.catalog_name(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.cli.print.header": "true",
        "spark.jars": ",".join(session.spark_jars()),
    }
    # The shell creates a warehouse folder where it starts.
    with spark.properties_file(conf) as properties:
        logging = Path(properties.parent, "log4j2.properties")
        logging.write_text(LOG4J, encoding="utf-8")
        command = [str(spark.spark_program("spark-sql")), "--properties-file", str(properties)]
        command += ["--driver-java-options", shlex.quote(f"-Dlog4j2.configurationFile={logging}")]
        if statement:
            command += ["-e", statement]
        return subprocess.run(command, cwd=properties.parent, check=False, text=True, **options)
