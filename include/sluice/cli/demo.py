"""`sluice demo`: runs Sluice on real records, end to end, and checks the result. In: nothing. Out: a report."""

from __future__ import annotations

import argparse
from typing import Any

from sluice.cli.arguments import add_command


def add_commands(commands: Any) -> None:
    """Add the command."""
    demo = add_command(
        commands,
        "demo",
        _demo,
        "run Sluice on real records, end to end, and check the result (make demo)",
        ["", "--keep"],
    )
    demo.description = (
        "Moves real records through Kafka, Airflow and Spark into tables, and checks them.\n"
        "Uses the stack in SLUICE_HOME; a stack that was not running is started, and stopped at the end.\n"
        "The data stays."
    )
    demo.add_argument("--keep", action="store_true", help="leave the stack running at the end")


def _demo(given: argparse.Namespace) -> int:
    from sluice import demo

    return demo.main(keep=given.keep)
