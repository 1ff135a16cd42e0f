"""`sluice doctor`: checks the installation, one line per check.

In: the environment and the contracts. Out: what is well, and the next step for what is not.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from sluice.cli import output
from sluice.cli.arguments import add_command, add_json, add_patience

if TYPE_CHECKING:
    from sluice.doctor.findings import Finding

NAMES = (
    *("versions", "java", "jars", "contracts", "masks"),
    *("kafka", "registry", "catalog", "storage", "spark", "airflow"),
)


def add_commands(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "doctor",
        _doctor,
        "check versions, Java, jars, contracts, masking key, Kafka, registry, catalog, storage, Spark and Airflow",
        ["", "kafka catalog", "--json"],
    )
    parser.description = (
        "Checks versions, Java, jars, contracts, masking key, Kafka, registry, catalog, storage, Spark and Airflow.\n"
        "Catalog and storage are checked with a table in a namespace sluice_doctor_…; both are removed again.\n"
        "Exit code 0: all is well or not used here; 2: something did not answer; 3: something must be corrected."
    )
    # `choices` of argparse would refuse an empty list.
    parser.add_argument("checks", nargs="*", type=_check, metavar="CHECK", help=f"default: all of {', '.join(NAMES)}")
    add_json(parser)
    add_patience(parser, 30.0)


def _check(text: str) -> str:
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(NAMES)}")
    return text


def _doctor(given: argparse.Namespace) -> int:
    from sluice.cli.sql import run_shell
    from sluice.doctor import doctor, findings

    checks = doctor.make_checks(given.patience, run_shell)
    chosen = [check for name, check in checks.items() if name in (given.checks or checks)]
    found: list[Finding] = []
    results = findings.run_checks(chosen, os.environ)
    for check in chosen:
        with output.progress(f"checking {check.name}"):
            each = next(results)
        found.append(each)
        if not given.json:
            _print(each)
    output.show(given, findings.as_facts(found), lambda: None)
    return findings.exit_code(found)


def _print(finding: Finding) -> None:
    output.print_lines([f"{finding.state:<9}  {finding.check:<9}  {finding.text}"])
    if finding.next_step:
        print(f"{'':<9}  {'':<9}  next step: {finding.next_step}")
