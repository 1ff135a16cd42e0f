"""The ledger, table `sluice.offsets`: an append-only history of plans and outcomes that any engine can query.

It is an index: a table's own snapshots decide what the table holds. The ledger adds batches that are not published yet,
and why a step was refused. A plan is appended only if the ledger is unchanged since it was read (compare-and-set).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import reduce
from math import inf

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from sluice.batch import Batch
from sluice.errors import LedgerError, RetryableError
from sluice.iceberg import availability, own_table, scan, table_names, tables
from sluice.iceberg.filters import And, BooleanExpression, above, at_most, equal, one_of
from sluice.ledger.ledger_rows import (
    SCHEMA,
    SPEC,
    BatchKey,
    LedgerRow,
    LedgerState,
    row_from_record,
    rows_to_arrow,
    split_batches,
)

MAX_APPEND_ATTEMPTS = 20

ROW_GROUPS = {"write.parquet.row-group-limit": "16384", "write.parquet.row-group-size-bytes": str(256 << 10)}
"""Rows and bytes, for PyIceberg and for Spark: status and planning read the newest rows of each topic's last file."""

_BATCH_COLUMNS = ("at", "topic", "topic_id", "batch_seq", "partition", "start_offset", "end_offset", "state")


class ConflictError(RetryableError):
    """The ledger changed since it was read; nothing was written."""


def load_ledger_table(catalog: Catalog) -> Table | None:
    """Load the ledger's table; return None if it does not exist, instead of creating it."""
    with availability.translate_catalog_errors():
        return tables.load(catalog, table_names.LEDGER)


class Ledger:
    """The ledger as of one snapshot; `append` and `refresh` move it to the current one."""

    def __init__(self, catalog: Catalog, table: Table | None = None) -> None:
        self.catalog = catalog
        self.table = table or own_table.add_missing_columns(
            tables.ensure_table(catalog, table_names.LEDGER, SCHEMA, SPEC, ROW_GROUPS), SCHEMA
        )
        self._settled_files: tuple[int | None, dict[str | None, list[FileScanTask]]] = (None, {})
        self._files: tuple[int | None, list[FileScanTask]] = (None, [])
        # Of the snapshot with this id: by topic, above which number batches were read, and their rows.
        self._batch_rows: tuple[int | None, dict[str, tuple[int, list[LedgerRow]]]] = (None, {})

    def refresh(self) -> None:
        """Move to the ledger's current snapshot."""
        self.table = self.catalog.load_table(table_names.LEDGER)

    def append(self, rows: Iterable[LedgerRow], *, run_id: str, if_unchanged: bool = False) -> None:
        """Write rows in one commit.

        Args:
            rows: what to write; rows without a run id get `run_id`.
            run_id: the writer; it is also in the commit's summary.
            if_unchanged: refuse if another writer added rows since this snapshot was read (compare-and-set).

        Raises:
            ConflictError: another writer came first; without `if_unchanged`, at each attempt. Nothing was written, and
                the view is at the current snapshot.
        """
        data = rows_to_arrow(rows, self.table.schema().as_arrow(), run_id)
        if not len(data):
            return
        for attempt in range(MAX_APPEND_ATTEMPTS):
            time.sleep(0.05 * attempt)
            if not if_unchanged:
                self.refresh()
            head = self.table.metadata.current_snapshot_id
            try:
                own_table.append(self.table, data, retry=False, **{"sluice.run-id": run_id})
            except CommitFailedException as error:
                conflict = ConflictError(str(error))
                self.refresh()
                # The other commit may have added no snapshot, such as an expiry of snapshots: then try again.
                if if_unchanged and self.table.metadata.current_snapshot_id != head:
                    break
            else:
                self.refresh()
                return
        raise conflict

    def rows(self, after: Mapping[str, int], states: Iterable[LedgerState] | None = None) -> list[LedgerRow]:
        """Return rows of batches, oldest first.

        Args:
            after: per topic, only batches above this number; topics that are not named are left out.
            states: only rows in these states; all by default.
        """
        return [row_from_record(r) for r in self._read_rows(after, states).to_pylist()]

    def batches(self, after: Mapping[str, int]) -> tuple[dict[BatchKey, Batch], dict[str, LedgerError]]:
        """Return the batches that were planned, staged or settled, as `split_batches` does.

        A topic is read once until the ledger changes: status and the planner ask for the same batches.

        Args:
            after: per topic, only batches above this number; topics that are not named are left out.
        """
        head = self.table.metadata.current_snapshot_id
        if self._batch_rows[0] != head:
            self._batch_rows = head, {}
        known = self._batch_rows[1]
        if missing := {t: seq for t, seq in after.items() if t not in known or seq < known[t][0]}:
            states = (LedgerState.PLANNED, LedgerState.STAGED, LedgerState.SETTLED)
            known |= {topic: (seq, []) for topic, seq in missing.items()}
            for record in self._read_rows(missing, states, _BATCH_COLUMNS).to_pylist():
                known[record["topic"]][1].append(row_from_record(record))
        rows = [row for topic, seq in after.items() for row in known[topic][1] if (row.batch_seq or 0) > seq]
        return split_batches(rows)

    def _read_rows(
        self, after: Mapping[str, int], states: Iterable[LedgerState] | None, columns: Sequence[str] = ()
    ) -> pa.Table:
        if not after or self.table.metadata.current_snapshot_id is None:
            return SCHEMA.as_arrow().empty_table()
        # PyIceberg evaluates the whole filter for each file, so topics are not part of it: a file is of one topic.
        # Files with similar lower limits are read together; the surplus rows are dropped below.
        wanted_states = None if states is None else {str(state) for state in states}
        in_states = [] if wanted_states is None else [one_of("state", sorted(wanted_states))]
        lowest = min(after.values())
        groups: dict[int, list[tuple[int, FileScanTask]]] = {}
        for task in self._plan_files(wanted_states):
            topic = self._topic(task.file)
            limit = lowest if topic is None else after.get(topic)
            if limit is not None and self._last_seq(task.file) > limit:
                groups.setdefault(limit.bit_length(), []).append((limit, task))
        if not groups:
            return SCHEMA.as_arrow().empty_table()
        parts = []
        for group in groups.values():
            row_filter = reduce(And, in_states, above("batch_seq", min(limit for limit, _ in group)))
            parts.append(scan.read_own_files(self.table, [task for _, task in group], row_filter, columns))
        found = pa.concat_tables(parts, promote_options="permissive").sort_by([("at", "ascending")])
        topic_index = pc.index_in(found["topic"], pa.array(list(after), found.schema.field("topic").type))
        limits = pa.array(list(after.values()), pa.int64()).take(topic_index)
        return found.filter(pc.greater(found["batch_seq"], limits))

    def planned_batches(self, run_id: str) -> dict[str, set[int]]:
        """Return, by topic, the numbers of the batches that a run has planned."""
        if self.table.metadata.current_snapshot_id is None:
            return {}
        row_filter = And(equal("state", str(LedgerState.PLANNED)), equal("run_id", run_id))
        found = self.table.scan(row_filter=row_filter, selected_fields=("topic", "batch_seq")).to_arrow()
        batches: dict[str, set[int]] = {}
        for row in found.to_pylist():
            batches.setdefault(row["topic"], set()).add(row["batch_seq"])
        return batches

    def gaps(self, topics: Iterable[str]) -> list[LedgerRow]:
        """Return the accepted gaps of these topics, oldest first."""
        if self.table.metadata.current_snapshot_id is None:
            return []
        row_filter = And(one_of("topic", sorted(topics)), equal("state", str(LedgerState.GAP)))
        found = scan.read_own_files(self.table, self._plan_files({str(LedgerState.GAP)}), row_filter)
        return [row_from_record(r) for r in found.sort_by([("at", "ascending")]).to_pylist()]

    def _plan_files(self, states: Collection[str] | None) -> Iterator[FileScanTask]:
        """The files that may hold rows in these states; all by default.

        All manifests are read once until the ledger changes: with an hour's small files, that takes longer than the
        rest of a plan.
        """
        head = self.table.metadata.current_snapshot_id
        if self._files[0] != head:
            self._files = head, list(self.table.scan().plan_files())
        column = self.table.schema().find_field("state").field_id
        for task in self._files[1]:
            least, greatest = ((each or {}).get(column) for each in (task.file.lower_bounds, task.file.upper_bounds))
            if (
                states is None
                or least is None
                or greatest is None
                or any(least <= state.encode() <= greatest for state in states)
            ):
                yield task

    def last_settled(self, topic: str, most: int) -> int:
        """Return the topic's last batch up to number `most` that all its tables hold; 0 if there is none."""
        if self.table.metadata.current_snapshot_id is None:
            return 0
        settled = And(equal("topic", topic), equal("state", str(LedgerState.SETTLED)))
        row_filter = And(settled, at_most("batch_seq", most))
        found = self.table.scan(row_filter=row_filter, selected_fields=("batch_seq",)).to_arrow()
        return pc.max(found["batch_seq"]).as_py() or 0

    def settled_before(self, topic: str, until: datetime, above_seq: int = 0) -> int:
        """Return the topic's last batch above a number that was settled by this time; 0 if there is none.

        The files are planned once for all topics and kept until the ledger changes: planning them takes as long for one
        topic as for all.
        """
        head = self.table.metadata.current_snapshot_id
        if head is None:
            return 0
        settled = equal("state", str(LedgerState.SETTLED))
        if self._settled_files[0] != head:
            self._settled_files = head, self.plan_files_by_topic(settled)
        by_topic = self._settled_files[1]
        tasks = [
            task
            for task in (*by_topic.get(topic, ()), *by_topic.get(None, ()))
            if self._last_seq(task.file) > above_seq and self._first_at(task.file) <= until.timestamp()
        ]
        if not tasks:
            return 0
        row_filter = And(And(settled, equal("topic", topic)), above("batch_seq", above_seq))
        found = scan.read_files(self.table, tasks, row_filter, ("batch_seq", "at"))
        return pc.max(found.filter(pc.field("at") <= until)["batch_seq"]).as_py() or 0

    def plan_files_by_topic(self, row_filter: BooleanExpression) -> dict[str | None, list[FileScanTask]]:
        """Return the files that may hold such rows, by topic; files of several topics are under None."""
        found: dict[str | None, list[FileScanTask]] = {}
        for task in self.table.scan(row_filter=row_filter).plan_files():
            found.setdefault(self._topic(task.file), []).append(task)
        return found

    def _topic(self, file: DataFile) -> str | None:
        """The one topic of a file; None if another partition spec wrote it."""
        spec = self.table.specs()[file.spec_id]
        return str(file.partition[0]) if spec.fields == SPEC.fields else None

    def _last_seq(self, file: DataFile) -> float:
        return tables.decode_bound(file.upper_bounds, self.table.schema().find_field("batch_seq"), inf)

    def _first_at(self, file: DataFile) -> float:
        """The epoch seconds of a file's first row."""
        return tables.decode_bound(file.lower_bounds, self.table.schema().find_field("at"), -inf) / 1_000_000


def load_ledger(catalog: Catalog) -> Ledger | None:
    """Load the ledger; return None if its table does not exist, instead of creating it."""
    table = load_ledger_table(catalog)
    return Ledger(catalog, table) if table else None
