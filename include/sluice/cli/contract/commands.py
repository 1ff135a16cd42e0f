"""`sluice contract`: checks contracts, tests them on sample records, and compares them with their tables.

In: a folder of contracts, or a table. Out: problems as `file:line`, records' outcomes, or changes; nothing is written.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.cli import output
from sluice.cli.arguments import (
    add_command,
    add_group,
    add_json,
    add_patience,
    add_table,
    load_contracts,
    positive_int,
)
from sluice.cli.contract import init

if TYPE_CHECKING:
    from sluice.contract.contract import Contract
    from sluice.contract.folder import Contracts
    from sluice.evolve.pending_change import PendingChange


def add_commands(commands: Any) -> None:
    """Add the commands."""
    contract = add_group(commands, "contract", "check and test contracts, and compare them with their tables")
    init.add_init(contract)
    check = add_command(
        contract,
        "check",
        _check,
        "show every problem as file:line, and which tables would be created",
        ["", "./contracts --json"],
    )
    check.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="default: SLUICE_CONTRACTS")
    add_json(check)
    test = add_command(
        contract,
        "test",
        _test,
        "run sample records through a contract; writes nothing",
        ["shop.orders --file records.jsonl", "shop.orders --from-topic 100"],
    )
    add_table(test)
    source = test.add_mutually_exclusive_group(required=True)
    source.add_argument("--file", type=Path, metavar="JSONL", help='a record per line: {"key": …, "value": …}')
    source.add_argument(
        "--from-topic", type=positive_int, metavar="N", help="the newest N records of the topic, by Kafka's timestamp"
    )
    test.add_argument("--topic", default="", metavar="TOPIC", help="if the table reads several topics, or a pattern")
    add_json(test)
    add_patience(test)
    diff = add_command(
        contract,
        "diff",
        _diff,
        "show what differs between a table's active contract and the file, and what the next run does about it",
        ["shop.orders"],
    )
    add_table(diff)
    add_json(diff)
    add_patience(diff)
    init.add_exchange(contract)


def _check(given: argparse.Namespace) -> int:
    from sluice.contract import folder as contract_folder
    from sluice.formats import masks
    from sluice.status.text import counted

    found = contract_folder.load_contracts(given.folder, strict=False)
    every = (*found.tables.values(), *found.templates.values())
    templates = [c for c in every if c.topic_pattern]
    lacking = masks.find_missing_keys(every)
    if not given.json:
        for problem in found.problems:
            print(problem)
        number = len(found.tables) + len(found.templates)
        valid = f"{number} of the contracts in {found.folder} are valid"
        if not found.problems:
            valid = f"{counted(number, 'contract')} in {found.folder}, all valid"
        print(f"{valid}; groups: {', '.join(found.groups) or 'none'}")
        for table, error in lacking.items():
            output.print_lines([f"warning: here, a run would stop {table}: {error}"])
        for contract in templates:
            pattern = contract.topic_pattern.pattern if contract.topic_pattern else ""
            print(f"{contract.table}: `plan {contract.group}` shows which topics match `{pattern}`")
    compared = _compare_with_tables(found)
    facts = {
        "folder": str(found.folder),
        "tables": [*found.tables, *found.templates],
        "groups": list(found.groups),
        "problems": [str(problem) for problem in found.problems],
        "warnings": [str(error) for error in lacking.values()],
        **compared,
    }
    output.show(given, facts, lambda: output.print_lines(_comparison_lines(compared)))
    return 3 if found.problems or compared["mismatches"] else 0


def _compare_with_tables(found: Contracts) -> dict[str, Any]:
    """Which tables would be created or changed, and which do not match their contract."""
    from sluice.cli.schema import describe_new_columns
    from sluice.errors import ConfigError, RetryableError, SchemaChangeError
    from sluice.evolve import evolve
    from sluice.iceberg import availability, table_names, tables

    out: dict[str, Any] = {"exist": 0, "would_create": [], "changes": {}, "mismatches": {}, "not_checked": None}
    try:
        catalog = availability.open_catalog()
    except (ConfigError, RetryableError) as error:
        return {**out, "not_checked": error.message}
    wanted = {".".join(table_names.typed(c)): table_names.typed(c) for c in found.tables.values()}
    wanted |= {".".join(table_names.staging(t)): table_names.staging(t) for t in found.topics}
    with availability.translate_catalog_errors():
        present = {name for name, identifier in wanted.items() if tables.load(catalog, identifier) is not None}
        out |= {"exist": len(present), "would_create": [name for name in wanted if name not in present]}
        for contract in found.tables.values():
            if contract.table in present:
                try:
                    table = catalog.load_table(table_names.typed(contract))
                    if asked := evolve.find_pending_change(catalog, table, contract).summary():
                        out["changes"][contract.table] = asked
                except SchemaChangeError as error:
                    out["mismatches"][contract.table] = f"{error.message} {error.next_step}"
            elif contract.auto:
                text, failed = describe_new_columns(contract)
                out["mismatches" if failed else "changes"][contract.table] = text
    return out


def _comparison_lines(compared: dict[str, Any]) -> list[str]:
    if compared["not_checked"]:
        return [f"The tables were not checked: {compared['not_checked']}"]
    return [
        *(f"would create {name}" for name in compared["would_create"]),
        *(f"{name}: {text}" for kind in ("changes", "mismatches") for name, text in compared[kind].items()),
        f"{compared['exist']} tables exist, {len(compared['would_create'])} would be created by the first run",
    ]


def _test(given: argparse.Namespace) -> int:
    from sluice.cli.contract import sample_test
    from sluice.evolve import auto_columns
    from sluice.plan import resolve_topics
    from sluice.status.text import counted

    contract = auto_columns.resolve_columns(resolve_topics.resolve_contract(load_contracts(), given.table, given.topic))
    with output.progress("reading the records"):
        records = sample_test.read_records(contract, given.file, given.from_topic or 0, given.topic, given.patience)
    with output.progress(f"running {counted(len(records), 'record')} through the contract in Spark"):
        found, results = sample_test.run_test(contract, given.topic or contract.topics[0], records)
    facts = {"records": found, "expectations": [asdict(each) for each in results]}

    def text() -> None:
        if records:
            output.print_lines(sample_test.report_lines(found, results))
        else:
            print("There are no records to test.")

    output.show(given, facts, text)
    failed = any(each.error for each in found) or any(r.success is False and r.severity == "block" for r in results)
    return 3 if failed else 0


def _diff(given: argparse.Namespace) -> int:
    from sluice.evolve import evolve
    from sluice.iceberg import availability, table_names, tables
    from sluice.plan import resolve_topics

    catalog = availability.open_catalog(given.patience)
    with availability.translate_catalog_errors():
        file = resolve_topics.resolve(load_contracts(), catalog, None).table(given.table)
        table = tables.load(catalog, table_names.typed(file))
        change = evolve.find_pending_change(catalog, table, file) if table else None
    if change is None:
        facts: dict[str, Any] = {"table": file.table, "exists": False, "changes": [], "next_run": "creates the table"}
        output.show(given, facts, lambda: print(f"{file.table} does not exist yet: the next run creates it."))
        return 0
    facts = _change_facts(change, file)
    output.show(given, facts, lambda: output.print_lines(_change_lines(facts)))
    return 0


def _change_facts(change: PendingChange, file: Contract) -> dict[str, Any]:
    policy = file.schema_policy.model_dump()

    def fact(each: Any) -> dict[str, Any]:
        return {
            "kind": each.kind,
            "column": each.column,
            "change": each.description,
            "policy": policy.get(each.kind, "auto"),
        }

    return {
        "table": change.table,
        "exists": True,
        "active_version": change.version,
        "changes": [fact(each) for each in change.changes],
        "ignored": [fact(each) for each in change.ignored],
        "masks_applied_first": change.mask_change.descriptions() if change.mask_change else [],
        "review": change.review,
        "schema_error": change.schema_error,
        "next_run": _next_run(change),
    }


def _next_run(change: PendingChange) -> str:
    if change.schema_error:
        return f"keeps the active contract: {change.schema_error}"
    if change.review == "open":
        return f"keeps the active contract until the change is approved: `schema approve {change.table}`"
    if change.review == "rejected":
        return f"keeps the active contract: the change was rejected; `schema approve {change.table}` changes that"
    if change.due:
        return f"applies the changes as version {change.version + 1}"
    return "changes nothing"


def _change_lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"{facts['table']}: version {facts['active_version']} of its contract is active"]
    lines += [f"mask      {each}, applied first" for each in facts["masks_applied_first"]]
    lines += [f"change    {each['change']} ({each['kind']}: {each['policy']})" for each in facts["changes"]]
    lines += [f"ignored   {each['change']} ({each['kind']})" for each in facts["ignored"]]
    return [*lines, f"next run  {facts['next_run']}"]
