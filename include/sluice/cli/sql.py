"""`python -m sluice sql [STATEMENT]`: Spark's own SQL shell on the catalog, configured as the steps are."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

# What fails is printed by the shell itself. Without an appender Spark would take the file for none.
LOG4J = """\
appender.console.type = Console
appender.console.name = console
rootLogger.level = off
rootLogger.appenderRef.console.ref = console
"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("sql", help="Spark's SQL shell on the catalog; or run one statement and end")
    parser.add_argument("statement", nargs="?", metavar="STATEMENT", help="several are parted by semicolons")
    parser.set_defaults(run=_sql)


def _sql(given: argparse.Namespace) -> int:
    import pyspark

    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.iceberg import table_names
    from sluice.ingest import session

    name = table_names.catalog_name()
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    # The shell leaves a folder for tables of its own where it starts; credentials stand in a file, never in a command.
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
            "spark.jars": ",".join(session.jars()),
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
    """As java.util.Properties reads it, from a file in UTF-8."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
