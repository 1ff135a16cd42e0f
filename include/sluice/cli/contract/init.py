"""`sluice contract init`, `import` and `export`: drafts contracts, and exchanges them as ODCS documents.

In: a topic, a pattern for several, or an ODCS file. Out: a YAML file each; nothing is overwritten.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.cli.arguments import add_command, add_patience, add_table, load_contracts, positive_int, program_name
from sluice.errors import ConfigError, ContractError, SluiceError, exit_code

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from sluice.contract.document import Problem
    from sluice.draft.model import Draft
    from sluice.draft.sample import Sample
    from sluice.kafka.registry import WriterSchema

MAX_TOPICS = 200
_RESERVED = ("groups", "defaults")


def add_init(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "init",
        _init,
        "write a first contract for a topic, from its schema or a sample of its records; comments show the evidence",
        ["--topic orders --namespace shop", "--pattern 'shop[.].*' --sample 200"],
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--topic", metavar="TOPIC", help="the topic")
    which.add_argument("--pattern", metavar="REGEX", help="every topic whose whole name matches: a contract each")
    parser.add_argument("--subject", default="", metavar="SUBJECT", help="of the values' schema (default: TOPIC-value)")
    parser.add_argument(
        "--sample",
        type=positive_int,
        default=1000,
        metavar="N",
        help="the newest N records of the topic, by Kafka's timestamp (default 1000)",
    )
    parser.add_argument(
        "--namespace", default="", metavar="NAME", help="of the table (default: the topic to its last dot, as one name)"
    )
    parser.add_argument(
        "--like",
        default="",
        metavar="TABLE",
        help="of --topic: this existing table is the contract's, with its columns and partitions; for `sluice adopt`",
    )
    parser.add_argument("--group", default="", metavar="GROUP", help="default: the namespace")
    parser.add_argument("--owner", default="", metavar="NAME", help="default: your login name")
    parser.add_argument("--structs", action="store_true", help="objects in JSON become structs, not a column per field")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: SLUICE_CONTRACTS")
    add_patience(parser)


def add_exchange(commands: Any) -> None:
    """Add the commands for other tools' data contracts."""
    parser = add_command(
        commands,
        "import",
        _import,
        "write contracts from a data contract of the Open Data Contract Standard (ODCS 3.0 to 3.2); comments name what "
        "is guessed or left out",
        ["orders.odcs.yaml --topic orders", "shop.odcs.yaml --schema orders --stdout"],
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the data contract, as YAML")
    parser.add_argument("--schema", default="", metavar="NAME", help="one of its schema objects (default: all)")
    parser.add_argument("--topic", default="", metavar="TOPIC", help="the topic, if the data contract does not name it")
    parser.add_argument("--namespace", default="", metavar="NAME", help="of the table (default: the data contract's)")
    parser.add_argument("--group", default="", metavar="GROUP", help="default: the namespace")
    parser.add_argument("--owner", default="", metavar="NAME", help="default: the data contract's team")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--output", type=Path, metavar="FOLDER", help="default: SLUICE_CONTRACTS")
    where.add_argument("--stdout", action="store_true", help="print the contracts, and write no file")
    export = add_command(
        commands,
        "export",
        _export,
        "print a contract as a data contract of the Open Data Contract Standard (ODCS 3.2)",
        ["shop.orders >orders.odcs.yaml", "shop.orders --version 2.1.0"],
    )
    add_table(export)
    export.add_argument("--version", default="1.0.0", metavar="VERSION", help="of the data contract (default 1.0.0)")


def _init(given: argparse.Namespace) -> int:
    from sluice.contract import folder as contract_folder
    from sluice.draft import naming

    folder = given.output or contract_folder.default_folder()
    if given.like and (given.pattern or given.namespace):
        raise ConfigError("--like names the table of one topic.", next_step="Use it with --topic, without --namespace.")
    topics = [given.topic] if given.topic else _matching(given.pattern, given.patience)
    failed: list[SluiceError] = []
    written: list[str] = []
    for topic in topics:
        try:
            table = given.like or naming.table_name(topic, given.namespace)
            path = _draft_file(topic, table, folder, given)
            written.append(table)
            print(f"{path}: written, and valid")
        except SluiceError as error:
            if given.topic:
                raise
            failed.append(error)
            print(f"{topic}: {error.message} {error.next_step}".rstrip())
    if written:
        print("next step: read the comments and correct what you know better. Then run:")
        print(f"  {program_name()} contract check {shlex.quote(str(folder))}")
        print(f"  {program_name()} contract test {shlex.quote(written[0])} --from-topic 100")
    return max(map(exit_code, failed), default=0)


def _matching(pattern: str, patience: float) -> list[str]:
    from pydantic import ValidationError

    from sluice.contract.topic_pattern import TopicPattern
    from sluice.kafka import broker

    try:
        wanted = TopicPattern(pattern=pattern)
    except ValidationError as error:
        raise ConfigError(f"--pattern: {error.errors()[0]['msg']}.") from error
    found = sorted(filter(wanted.matches, broker.list_topic_names(broker.connect(patience))))
    if not found or len(found) > MAX_TOPICS:
        what = f"{len(found)} topics match" if found else "No topic matches"
        raise ConfigError(f"{what} {pattern!r}.", next_step=f"Name a pattern that matches 1 to {MAX_TOPICS} topics.")
    return found


def _draft_file(topic: str, table: str, folder: Path, given: argparse.Namespace) -> Path:
    """Write the contract of a topic, after it passed the checks beside the folder's other contracts."""
    from sluice.draft import draft, existing_table, text
    from sluice.kafka.registry import SchemaRegistry

    name = table if given.pattern else table.rpartition(".")[2]  # topics of several namespaces may end alike
    path = _new_file(folder, name)
    sample = _read_sample(topic, given.sample, given.patience)
    group, owner = _common(folder, given, table)
    wishes = draft.Wishes(table, group, owner, given.subject, given.structs)

    def lookup(numbers: list[int]) -> dict[int, WriterSchema | None]:
        return SchemaRegistry().schemas(numbers)

    found = draft.make_draft(sample, wishes, lookup, _newest_schema(topic, given.subject))
    if given.like:
        found = existing_table.fit_to_table(found, _load_existing(table, given.patience))
    body = text.as_yaml(found, schema_address(folder))
    _check_beside(body, path)
    _write(path, body)
    return path


def _load_existing(name: str, patience: float) -> Table:
    from sluice.iceberg import availability, tables

    catalog = availability.open_catalog(patience)
    with availability.translate_catalog_errors():
        found = tables.load(catalog, tuple(name.split(".")))
    if found is None:
        raise ConfigError(f"The catalog has no table {name}.")
    return found


def _new_file(folder: Path, name: str) -> Path:
    path = folder / f"{name + '_table' if name in _RESERVED else name}.yaml"
    if os.path.lexists(path):
        raise ConfigError(
            f"{path} exists, and is not overwritten.",
            next_step="Remove or rename it, or write elsewhere with --output.",
        )
    return path


def _write(path: Path, body: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as stream:
            stream.write(body)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}.") from error


def _read_sample(topic: str, number: int, patience: float) -> Sample:
    from sluice.cli.contract import sample_test
    from sluice.draft.sample import Sample, SampledRecord
    from sluice.kafka import broker

    state = broker.describe_topic(broker.connect(patience), topic)
    rows = sample_test.read_topic(topic, number, patience=patience)
    records = []
    for _, _, _, at, key, value, headers, _ in rows:
        millis = int(at.timestamp() * 1000) if at else None
        records.append(SampledRecord(key, value, millis, tuple(str(name) for name, _ in headers or ())))
    return Sample(topic, tuple(records), state.compacted)


def _newest_schema(topic: str, subject: str) -> WriterSchema | None:
    """The newest schema of the values; None if no registry is configured, unless a subject was named."""
    from sluice.errors import RegistryUnavailableError
    from sluice.kafka.registry import SchemaRegistry, candidate_subjects

    try:
        found = SchemaRegistry().newest(subject or candidate_subjects(topic)[0])
    except ConfigError:
        if subject:
            raise
        return None
    except RegistryUnavailableError as error:
        if subject:
            raise
        print(f"warning: {error.message} The draft is made without its schemas.", file=sys.stderr)
        return None
    if subject and found is None:
        raise ConfigError(f"The registry has no subject {subject!r}.", topic=topic)
    return found


def _common(folder: Path, given: argparse.Namespace, table: str) -> tuple[str, str]:
    """Group and owner; empty where `defaults.yaml` has them."""
    from sluice.contract.contract import with_group
    from sluice.contract.folder import read_defaults
    from sluice.operate import operator_input

    shared = read_defaults(folder, []) or {}
    group = "" if "group" in shared else str(with_group({"table": table})["group"])
    owner = "" if "owner" in shared else operator_input.current_user()
    return given.group or group, given.owner or owner


def schema_address(folder: Path) -> str:
    """Where an editor finds the JSON Schema of contracts, seen from a folder of contracts; empty if it is not there."""
    file = Path(__file__).resolve().parents[2] / "contract" / "schemas" / "contract.json"
    if not file.is_file():
        return ""
    repository, folder = file.parents[4], folder.resolve()
    return os.path.relpath(file, folder) if folder.is_relative_to(repository) else file.as_uri()


def _check_beside(body: str, path: Path) -> None:
    """Check a contract beside the others of its folder, as `contract check` does.

    Raises:
        ContractError: It does not pass: it contradicts another contract, or this is a bug.
    """
    if lines := _problems(body, path, beside="*.y*ml"):
        raise ContractError(
            "The draft does not pass the checks, and was not written:\n" + "\n".join(map(str, lines)),
            next_step="Name another table with --namespace, or another group with --group; else report this.",
        )


def _problems(body: str, path: Path, beside: str) -> list[Problem]:
    """What `contract check` says of a contract, beside files of its folder."""
    from sluice.contract.folder import load_contracts

    with tempfile.TemporaryDirectory() as scratch:
        for each in path.parent.glob(beside) if path.parent.is_dir() else ():
            if each.is_file() and each != path:
                shutil.copyfile(each, Path(scratch) / each.name)
        mine = Path(scratch) / path.name
        mine.write_text(body, encoding="utf-8")
        problems = load_contracts(Path(scratch), strict=False).problems
        found = [each for each in problems if each.file == str(mine)]
        return [
            replace(each, file=str(path), message=each.message.replace(scratch, str(path.parent))) for each in found
        ]


def _import(given: argparse.Namespace) -> int:
    from sluice.contract import folder as contract_folder
    from sluice.draft.naming import plain_name
    from sluice.odcs.import_contract import Wishes, draft_contract
    from sluice.odcs.standard_file import read_standard

    file = read_standard(given.file)
    chosen = file.select(given.schema)
    if given.topic and len(chosen) > 1:
        known = ", ".join(str(each.name) for each, _ in chosen)
        raise ConfigError(f"{given.file} has several schema objects.", next_step=f"Name one with --schema: {known}.")
    folder = given.output or contract_folder.default_folder()
    owner = _common(folder, given, "")[1]
    wishes = Wishes(given.topic, given.namespace, given.group, given.owner, "" if given.owner else owner)
    drafts = [draft_contract(file, table, raw, wishes) for table, raw in chosen]
    names = [plain_name(str(each.settings["table"].value).rpartition(".")[2]) for each in drafts]
    paths = [folder / f"{name}.yaml" if given.stdout else _new_file(folder, name) for name in names]
    if len(set(paths)) < len(paths):
        raise ConfigError("Several tables end in the same name.", next_step="Import each with --schema and --output.")
    codes = [_hand_over(each, path, given) for each, path in zip(drafts, paths, strict=True)]
    return max(codes)


def _hand_over(draft: Draft, path: Path, given: argparse.Namespace) -> int:
    """Write or print an imported contract, and say what its author must add."""
    from sluice.draft import text

    body = text.as_yaml(draft, "" if given.stdout else schema_address(path.parent))
    # Others are stopped by a contract that contradicts them, but not by one that is incomplete.
    problems = _problems(body, path, beside="defaults.yaml")
    if not problems and not given.stdout:
        _check_beside(body, path)
    if given.stdout:
        print(body, end="")
    else:
        _write(path, body)
    out = sys.stderr if given.stdout else sys.stdout
    did = "printed" if given.stdout else "written"
    print(f"{path.name}: {did}; add or correct:" if problems else f"{path.name}: {did}, and valid", file=out)
    for each in problems:
        print(f"  line {each.line}: {each.path}: {each.message}", file=out)
    for note in draft.notes:
        print(f"  {text.comment(note).removeprefix('# ')}", file=out)
    return 3 if problems else 0


def _export(given: argparse.Namespace) -> int:
    from sluice.draft import text
    from sluice.odcs.export_contract import as_standard
    from sluice.odcs.servers import configured_servers

    contracts = load_contracts()
    contract = contracts.templates.get(given.table) or contracts.table(given.table)
    document = as_standard(contract, given.version, configured_servers(contract))
    print(text.as_block(document.model_dump(by_alias=True, exclude_none=True)), end="")
    return 0
