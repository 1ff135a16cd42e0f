"""The embedded stack's commands: `python -m sluice.embedded up|down|status|jars|lock`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from sluice.embedded import jars, relock, stack
from sluice.embedded.failure import StackError, exit_on_signals, say
from sluice.embedded.home import Home
from sluice.embedded.status import Condition, stack_status

# The convention of init scripts: 0 running, 3 not running, 1 something is wrong.
STATUS_CODES = {Condition.RUNNING: 0, Condition.STARTING: 0, Condition.STOPPED: 3, Condition.BUSY: 3}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    chosen = _parser().parse_args(arguments)
    exit_on_signals()
    try:
        return _run(chosen)
    except (StackError, OSError) as error:  # OSError: the disk is full or a folder is not writable
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the services that this command started are stopped; check with make status")
        return 130


def _run(chosen: argparse.Namespace) -> int:
    if chosen.command == "up":
        home = Home.default()
        stack.up(home, only=chosen.only, registry=not chosen.no_registry)
        say(f"next, in each shell: source {shlex.quote(os.path.relpath(home.env_file))}")
        if not chosen.only:
            say("then: sluice doctor, or the guide docs/getting-started/first-table.md")
    elif chosen.command == "down":
        stack.down(Home.default())
    elif chosen.command == "status":
        status = stack_status(Home.default())
        print(status)
        return STATUS_CODES.get(status.condition, 1)
    elif chosen.command == "jars":
        if chosen.clouds:
            print(f"{jars.SPARK}: {jars.ensure_spark_jars(chosen.clouds.split(','))}")
        else:
            # The registry's are large and optional: fetched when it starts.
            for name in [chosen.of] if chosen.of else [jars.SPARK, jars.KAFKA]:
                print(f"{name}: {jars.ensure_jars(name)}")
    else:
        relock.write_lock()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sluice.embedded",
        description="A real broker, catalog, warehouse and Airflow on loopback, in SLUICE_HOME (default .sluice).",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the services that do not run yet")
    up.add_argument("--only", choices=["kafka"], help="start only the broker, without Airflow")
    up.add_argument("--no-registry", action="store_true", help="do not start the schema registry")
    commands.add_parser("down", help="stop the services that up started; the data stays")
    commands.add_parser("status", help="show each service and its address; exit code 0 running, 3 stopped, 1 failed")
    fetch = commands.add_parser("jars", help="fetch and verify the pinned jars")
    fetch.add_argument(
        "of",
        nargs="?",
        choices=[jars.SPARK, jars.KAFKA],
        help="Spark's, or the broker's",
    )
    fetch.add_argument("--clouds", help=f"Spark's with those of stores and catalogs: {','.join(jars.CLOUDS)}")
    commands.add_parser("lock", help="resolve the jars again and write jars.lock")
    return parser


if __name__ == "__main__":
    sys.exit(main())
