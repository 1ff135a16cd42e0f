"""The caller's environment for the stack's services, without settings for other Airflow or Spark installations."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec

# Settings for another Airflow (whose metadata database would be migrated), another catalog, another Spark or cluster.
_IGNORED = re.compile(r"AIRFLOW__|AIRFLOW_CONFIG$|PYICEBERG_|SPARK_|PYSPARK_|HADOOP_|YARN_|HIVE_")
# Exceptions: Airflow's mail, metrics and lineage; Spark's scratch folders; the user name where the system has none.
_PASSED_ON = re.compile(r"AIRFLOW__(EMAIL|METRICS|OPENLINEAGE|SMTP)__|SPARK_LOCAL_DIRS$|HADOOP_USER_NAME$")

# The same filter for a shell that sources the stack's `env` file. It reads names only: values may span lines.
UNSET_SCRIPT = (
    "for each in $(env | sed 's/=.*//' | grep -E '^[A-Za-z0-9_]+$'"
    f" | grep -E '^({_IGNORED.pattern})' | grep -vE '^({_PASSED_ON.pattern})'); do unset \"$each\"; done\n"
)


def ignored_variables() -> list[str]:
    """Return the names of the caller's variables that services do not get."""
    return sorted(name for name in os.environ if _IGNORED.match(name) and not _PASSED_ON.match(name))


def inherited_env() -> dict[str, str]:
    """Return the caller's environment without the ignored variables."""
    ignored = set(ignored_variables())
    env = {name: value for name, value in os.environ.items() if name not in ignored}
    # Airflow's tasks call its API with httpx, which fails if a SOCKS proxy is set and socksio is not installed.
    if find_spec("socksio") is None:
        for name in [n for n in env if n.lower() in ("http_proxy", "https_proxy", "all_proxy")]:
            if env[name].startswith("socks"):
                del env[name]
    # In these locales Python falls back to UTF-8 by itself, but Java cannot open files with non-ASCII names.
    if env.get("LC_ALL") in ("C", "POSIX"):
        env["LC_ALL"] = "C.UTF-8"
    return env
