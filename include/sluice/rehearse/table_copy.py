"""A copy of a table in namespaces of its own: its contract, its commands, and what is in it.

The commands are Sluice's own, each in a process of its own, with the prefix of the copy's namespaces.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pyiceberg.expressions import AlwaysTrue

from sluice.batch import BRANCH_PREFIX, CURSOR_TAG, PUBLISHED_THROUGH, decode_published_through
from sluice.contract import folder as contract_folder
from sluice.contract.contract import Contract, contract_for_topic
from sluice.contract.document import read_document
from sluice.contract.groups import GROUPS_FILE
from sluice.contract.values import NAMESPACE_PREFIX, PREFIX_VARIABLE, TEMPLATE
from sluice.errors import ContractError
from sluice.iceberg import cursor, filters, snapshots, table_names, tables
from sluice.rehearse import namespaces, oracle, stop

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)

COMMAND_SECONDS, MARK_SECONDS = 3600, 600
GROUP_SETTINGS = ("timeout", "topics_at_once", "spark")
# Files of a copy must be in folders of its own.
SHARED_FOLDERS = ("write.data.path", "write.metadata.path", "write.location-provider", "write.object-storage")


@dataclass(frozen=True)
class Result:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error that it printed, or its last line."""
        lines = [each for each in (self.out + self.err).splitlines() if each.strip()]
        named = [each for each in lines if each.startswith(("error: ", "stop ", "stopped ", "failed "))]
        return (named or lines or ["no output"])[-1][:500]


@dataclass(frozen=True)
class CopySource:
    """What copies are made from.

    Attributes:
        contract: the table's contract, with its topics resolved.
        topic: the one that copies read.
        folder: the folder of its contract.
        environment: for the commands.
    """

    contract: Contract
    topic: str
    folder: Path
    environment: Mapping[str, str]

    def read_contract(self) -> dict[str, Any]:
        """Return the plain values of the contract as its file has them, for the topic alone.

        Raises:
            ContractError: no file has it.
        """
        wanted = self.contract.table.removeprefix(NAMESPACE_PREFIX)
        for path in sorted(self.folder.glob("*.y*ml")):
            data = read_document(path, str(path)).data
            if not isinstance(data, dict):
                continue
            name = data.get("table")
            if name == wanted or (isinstance(name, str) and TEMPLATE in name and self._makes(name)):
                return {**data, "table": wanted, "topic": self.topic, "group": self.contract.group}
        raise ContractError(f"no file in {self.folder} defines the table {wanted!r}")

    def _makes(self, template: str) -> bool:
        made = contract_for_topic(self.contract.model_copy(update={"table": template}), self.topic).table
        return made == self.contract.table.removeprefix(NAMESPACE_PREFIX)


class TableCopy:
    """A copy of a table.

    Attributes:
        table: its name.
        group: its group; it has no other table.
    """

    def __init__(self, source: CopySource, catalog: Catalog, prefix: str, folder: Path) -> None:
        self._source, self._catalog, self._prefix, self._folder = source, catalog, prefix, folder
        bare = source.contract.table.removeprefix(NAMESPACE_PREFIX)
        self.table, self.group, self.topic = f"{prefix}{bare}", source.contract.group, source.topic
        (folder / "contracts").mkdir(parents=True)
        self._contract = source.read_contract()
        self._contract.pop("retention", None)  # an expiry would delete rows that the twin keeps
        properties = self._contract.get("properties") or {}
        self._contract["properties"] = {k: v for k, v in properties.items() if not k.startswith(SHARED_FOLDERS)}
        self._write_shared_files()

    def _write_shared_files(self) -> None:
        """Copy `defaults.yaml`, and of `groups.yaml` what concerns Spark."""
        defaults = self._source.folder / contract_folder.DEFAULTS_FILE
        if defaults.exists():
            (self._folder / "contracts" / defaults.name).write_bytes(defaults.read_bytes())
        groups = self._source.folder / GROUPS_FILE
        data = read_document(groups, str(groups)).data if groups.exists() else None
        entries = data if isinstance(data, dict) else {}
        kept = {
            name: {k: v for k, v in entries[name].items() if k in GROUP_SETTINGS}
            for name in ("defaults", self.group)
            if isinstance(entries.get(name), dict)
        }
        (self._folder / "contracts" / GROUPS_FILE).write_text(yaml.safe_dump(kept), encoding="utf-8")

    def write_contract(self, **changes: Any) -> Contract:
        """Write the contract with changes; the next call starts from the same contract.

        Raises:
            ContractError: it is not valid.
        """
        self._contract |= {k: v for k, v in changes.items() if k in ("start", "limits")}
        path = self._folder / "contracts" / "table.yaml"
        path.write_text(yaml.safe_dump({**self._contract, **changes}), encoding="utf-8")
        return contract_folder.load_contracts(path.parent).table(f"{NAMESPACE_PREFIX}{self._contract['table']}")

    @property
    def columns(self) -> list[dict[str, Any]]:
        """The columns of the contract as its file has them."""
        return list(self._contract["columns"])

    @property
    def first_offsets(self) -> dict[int, int]:
        """Where the copy begins."""
        return dict(self._contract["start"])

    def command(self, *arguments: str, **environment: str) -> Result:
        """Run one of Sluice's commands on the copy."""
        with self._started(arguments, environment) as (process, read):
            process.wait(COMMAND_SECONDS)
            return read()

    def kill_at(self, point: str, *arguments: str) -> bool:
        """Run a command, and kill it with its driver at a point of the run; False: it ended before."""
        mark, program = self._folder / "mark", self._folder / "driver"
        mark.unlink(missing_ok=True)
        words = f"'{sys.executable}' -m {stop.__name__} {point} '{mark}'"
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        program.chmod(0o700)
        until = time.monotonic() + MARK_SECONDS
        with self._started(arguments, {"PYSPARK_DRIVER_PYTHON": str(program)}) as (process, read):
            while process.poll() is None and not mark.exists() and time.monotonic() < until:
                time.sleep(0.1)
            if not mark.exists():
                log.warning("the driver did not stop at %s: %s", point, read().error)
            return mark.exists()

    @contextmanager
    def _started(
        self, arguments: tuple[str, ...], more: Mapping[str, str]
    ) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], Result]]]:
        """Start a command; at the end it is killed, with all processes that it has started."""
        log.info("sluice %s", " ".join(arguments))
        include = str(Path(__file__).resolve().parents[2])
        path = [include, *filter(None, self._source.environment.get("PYTHONPATH", "").split(os.pathsep))]
        env = {
            **self._source.environment,
            PREFIX_VARIABLE: self._prefix,
            contract_folder.FOLDER_VARIABLE: str(self._folder / "contracts"),
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
            **more,
        }
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "sluice", *arguments], env=env, stdout=out, stderr=err, start_new_session=True
            )

            def read() -> Result:
                texts = []
                for each in (out, err):
                    each.seek(0)
                    texts.append(each.read().decode(errors="replace"))
                for line in texts[1].splitlines():
                    log.debug("%s", line)
                return Result(process.returncode if process.returncode is not None else -1, *texts)

            try:
                yield process, read
            finally:
                kill_group(process)

    def load(self) -> Table | None:
        """The typed table; None where it does not exist."""
        return tables.load(self._catalog, tuple(self.table.split(".")))

    def count_snapshots(self) -> int:
        """How many snapshots the typed table has."""
        table = self.load()
        return len(table.metadata.snapshots) if table else 0

    def branches(self) -> list[str]:
        """The typed table's branches of runs that have not ended."""
        table = self.load()
        names = table.metadata.refs if table else ()
        return [name for name in names if name.startswith(BRANCH_PREFIX) and name != CURSOR_TAG]

    def published(self) -> dict[int, int]:
        """The typed table's cursor."""
        found = cursor.read_table_cursor(self.load()).get(self.topic)
        return dict(found.next_offsets) if found else {}

    def staged(self) -> dict[int, int]:
        """The cursor of the staging table."""
        last = cursor.read_staging_cursor(self._own(table_names.staging(self.topic)))
        return dict(last.next_offsets) if last else {}

    def commits(self) -> list[tuple[Snapshot, dict[int, int]]]:
        """The typed table's snapshots that carry its cursor, oldest first, each with the cursor."""
        table = self.load()
        found = []
        for each in snapshots.ancestors(table.metadata) if table else ():
            at = decode_published_through(snapshots.summary(each).get(PUBLISHED_THROUGH, "{}")).get(self.topic)
            if at:
                found.append((each, dict(at.next_offsets)))
        return found[::-1]

    def rows(self, snapshot_id: int | None = None) -> oracle.Rows:
        """The typed table's rows."""
        table = self.load()
        return oracle.read_rows(table.scan(snapshot_id=snapshot_id).to_arrow()) if table else oracle.Rows()

    def coordinates(self, kind: str, ends: Mapping[int, int]) -> list[oracle.Coordinates]:
        """The records before these offsets in `staging` or in `quarantine`."""
        quarantine = (table_names.QUARANTINE, table_names.safe_identifier(self.table))
        name = table_names.staging(self.topic) if kind == "staging" else quarantine
        table = self._own(name)
        if table is None:
            return []
        # The raw records of a replay are staged again, as a slice with a negative number.
        scan = table.scan(filters.above("batch_seq", 0) if kind == "staging" else AlwaysTrue())
        return oracle.read_coordinates(scan.select(oracle.PARTITION, oracle.OFFSET).to_arrow(), ends)

    def _own(self, identifier: tuple[str, ...]) -> Table | None:
        """One of Sluice's own tables for the copy; its name is known here with the prefix of this process."""
        namespace = identifier[0].removeprefix(NAMESPACE_PREFIX)
        return tables.load(self._catalog, (f"{self._prefix}{namespace}", *identifier[1:]))

    def state(self) -> str:
        """The metadata of all tables of the copy: it is the same as long as nothing was committed."""
        names = [n for each in namespaces.find(self._catalog, self._prefix) for n in self._catalog.list_tables(each)]
        found = {".".join(name): self._catalog.load_table(name).metadata_location for name in names}
        return json.dumps(found, sort_keys=True)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that has a group of its own, with what it started, and wait until all have ended."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(30)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.killpg(process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.05)
