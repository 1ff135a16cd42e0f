"""`sluice airflow setup`: creates the pools that the groups need, by Airflow's own command line.

In: the contracts, and the Airflow that is configured in this environment. Out: pools; an existing one is kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sluice import airflow_process
from sluice.cli.arguments import add_command, add_group, load_contracts, positive_int
from sluice.errors import ConfigError

DESCRIPTION = "Spark applications of Sluice that run at the same time"


def add_commands(commands: Any) -> None:
    """Add the commands."""
    group = add_group(commands, "airflow", "prepare the Airflow of this environment")
    setup = add_command(
        group,
        "setup",
        _setup,
        "create the pools that the groups need; a pool that exists keeps its size",
        ["", "--slots 4"],
    )
    setup.add_argument("--slots", type=positive_int, default=1, metavar="N", help="slots of new pools (default 1)")


def _setup(given: argparse.Namespace) -> int:
    from sluice.contract.groups import GroupSettings

    settings = [group.settings for group in load_contracts().groups.values()] or [GroupSettings()]
    wanted = sorted({pool for each in settings for pool in each.pools})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pools.json"
        _airflow("pools", "export", str(file))
        existing = json.loads(file.read_text(encoding="utf-8"))
        missing = [name for name in wanted if name not in existing]
        if missing:
            pool = {"slots": given.slots, "description": DESCRIPTION, "include_deferred": False}
            file.write_text(json.dumps(dict.fromkeys(missing, pool)), encoding="utf-8")
            _airflow("pools", "import", str(file))
    for name in wanted:
        if name in missing:
            print(f"pool {name}: created, slots: {given.slots}")
        else:
            print(f"pool {name}: exists, slots: {existing[name]['slots']}")
    return 0


def _airflow(*arguments: str) -> None:
    """Run Airflow's command line with this Python.

    Raises:
        ConfigError: Airflow is not installed, or rejected the command.
    """
    if not airflow_process.is_installed():
        raise ConfigError(
            "Airflow is not installed in this Python environment.",
            next_step="Run the command where Airflow runs, such as in its scheduler's container.",
        )
    done = subprocess.run([sys.executable, "-m", "airflow", *arguments], capture_output=True, check=False)
    if done.returncode:  # its output may have an address with a password
        raise ConfigError(
            f"Airflow's command `airflow {' '.join(arguments[:2])}` failed with exit code {done.returncode}.",
            next_step="See the message of `airflow pools list`. AIRFLOW_HOME and the database must be those of your "
            "Airflow, and the database migrated.",
        )
