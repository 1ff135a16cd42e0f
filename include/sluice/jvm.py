"""Options of the JVMs that Sluice starts: Spark drivers, and the embedded broker and registry.

Imports the standard library alone, because DAG files import it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

THREAD_STACK_SIZE = "-Xss64m"
"""Memory is taken only for what a thread uses. A regex needs up to 4 KB of stack per character where a group repeats:
the default overflows at 1,000 characters, and Spark ends a JVM whose task overflows its stack. Set through Spark's
`defaultJavaOptions`, which a group's own `extraJavaOptions` do not replace."""
DRIVER_OPTIONS = (
    # Pauses do no harm in a batch job, and batches take a tenth less time than with G1.
    "-XX:+UseParallelGC",
    # Spark's classes fill 200 MB: from the default size the JVM would run four full collections before any record.
    "-XX:MetaspaceSize=256m",
)
SHORT_LIVED_OPTIONS = (
    # The second compiler costs seconds before it saves any.
    "-XX:TieredStopAtLevel=1",
    # The option above makes the code cache five times smaller, and a full one stops all compiling for minutes.
    "-XX:ReservedCodeCacheSize=240m",
)
"""For a JVM that ends before optimised compilation pays off."""
SERVICE_OPTIONS = ("-XX:+UseSerialGC", *SHORT_LIVED_OPTIONS)
"""For the embedded broker and registry, which start often and have little load: a third less time to start."""
DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"
"""Spark's setting whose options come before `spark.driver.extraJavaOptions`, which a group's own setting replaces."""


def driver_conf(
    given: Mapping[str, str], log4j: Path | None, archive: Iterable[str] = (), *, small: bool = False
) -> dict[str, str]:
    """Return a group's Spark settings with the driver's JVM options: log file and stack size, then tuning.

    Args:
        given: the group's own settings.
        log4j: the file that says where Spark logs to; None: Spark's own.
        archive: the options for the class archive, for a quick start.
        small: whether the application is too short for JIT compilation to pay.
    """
    defaults = shlex.join([THREAD_STACK_SIZE, *([f"-Dlog4j2.configurationFile={log4j}"] if log4j else [])])
    tuning = [*DRIVER_OPTIONS, *(SHORT_LIVED_OPTIONS if small else ()), *archive]
    return {
        DEFAULT_OPTIONS: " ".join(filter(None, [defaults, given.get(DEFAULT_OPTIONS)])),
        "spark.driver.extraJavaOptions": shlex.join(tuning),
        **{name: value for name, value in given.items() if name != DEFAULT_OPTIONS},
    }
