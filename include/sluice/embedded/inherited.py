"""What a stack's services take over from the caller's environment: nothing that is about another installation."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec

# Another Airflow with its metadata database, which would be migrated; another catalog; another Spark and its cluster.
_FOREIGN = re.compile(r"AIRFLOW__|AIRFLOW_CONFIG$|PYICEBERG_|SPARK_|PYSPARK_|HADOOP_|YARN_|HIVE_")
# Whom Airflow tells of what it does; where Spark spills to; who somebody is whom the system does not know.
_KEPT = re.compile(r"AIRFLOW__(EMAIL|METRICS|OPENLINEAGE|SMTP)__|SPARK_LOCAL_DIRS$|HADOOP_USER_NAME$")


# The same for a shell that sources the stack's file. Line by line, as a variable's value may have several.
UNSET = (
    "for each in $(env | sed 's/=.*//' | grep -E '^[A-Za-z0-9_]+$'"
    f" | grep -E '^({_FOREIGN.pattern})' | grep -vE '^({_KEPT.pattern})'); do unset \"$each\"; done\n"
)


def foreign() -> list[str]:
    """The names of the caller's variables that no service gets."""
    return sorted(name for name in os.environ if _FOREIGN.match(name) and not _KEPT.match(name))


def inherited() -> dict[str, str]:
    """The caller's environment, as far as services may have it."""
    left = set(foreign())
    env = {name: value for name, value in os.environ.items() if name not in left}
    # By itself httpx, by which Airflow's tasks talk to its API, knows no such proxy, and refuses to work beside one.
    if find_spec("socksio") is None:
        for name in [n for n in env if n.lower() in ("http_proxy", "https_proxy", "all_proxy")]:
            if env[name].startswith("socks"):
                del env[name]
    # Python then takes UTF-8 by itself; Java would find no file whose name has more than ASCII.
    if env.get("LC_ALL") in ("C", "POSIX"):
        env["LC_ALL"] = "C.UTF-8"
    return env
