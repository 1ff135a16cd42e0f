"""The scenarios of a rehearsal: what is done to the copy, and what must be true afterwards.

Each begins and ends with a copy that equals its undisturbed twin. A scenario that is not possible here raises
`Skipped`, an outcome that is not the expected one `UnexpectedError`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sluice.contract.columns import Column
from sluice.errors import ContractError
from sluice.iceberg import table_names
from sluice.kafka import broker
from sluice.rehearse import oracle, stop
from sluice.rehearse.table_copy import TableCopy

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyiceberg.catalog import Catalog

WHY = ("--why", "rehearsal", "--yes")
NOWHERE = "127.0.0.1:9"
LOST = 5
"""So many offsets before the first record that Kafka still has are lost in the scenario `out-of-retention`."""
LOST_READ = 50
"""So many of the records behind the gap are read then."""
PASSWORDS = ("sasl.password", "sasl.oauthbearer.client.secret")


class Skipped(Exception):  # noqa: N818 - no error
    """The scenario is not possible here; the message says why."""


class UnexpectedError(Exception):
    """The outcome is not the expected one."""


def expect(holds: object, text: str) -> None:
    """Check a part of the expected outcome.

    Raises:
        UnexpectedError: it does not hold.
    """
    if not holds:
        raise UnexpectedError(text)


@dataclass(frozen=True)
class Step:
    """A batch of the undisturbed twin.

    Attributes:
        ends: the topic's cursor after it.
        snapshot_id: the twin's snapshot with it.
    """

    ends: Mapping[int, int]
    snapshot_id: int


@dataclass
class Rehearsal:
    """The copy, its twin, and how far the copy has come.

    Attributes:
        steps: the twin's batches; the copy is given the same records.
        at: how many of them the copy has published.
        make_lost_copy: makes a further, empty copy.
    """

    copy: TableCopy
    twin: TableCopy
    steps: Sequence[Step]
    client: AdminClient
    catalog: Catalog
    make_lost_copy: Callable[[], TableCopy]
    at: int = 0

    @property
    def ends(self) -> Mapping[int, int]:
        """The cursor that the copy must have."""
        return self.steps[self.at - 1].ends

    def arguments(self) -> tuple[str, ...]:
        """The command of a plain run up to where the copy must be."""
        return ("run", self.copy.group, "--to-offsets", encode(self.copy.topic, self.ends))

    def run(self, *, forward: bool = False) -> str:
        """Run the copy's group once, with the next records if `forward`, and check the result.

        Returns:
            what is equal.

        Raises:
            UnexpectedError: the run fails, or the copy does not equal the twin.
        """
        self.at += forward
        done = self.copy.command(*self.arguments())
        expect(done.code == 0, f"the run ends with exit code {done.code}: {done.error}")
        return self.check()

    def check(self) -> str:
        """Compare the copy with the twin over the same offsets.

        Raises:
            UnexpectedError: they differ.
        """
        published = self.copy.published()
        expect(published == dict(self.ends), f"the cursor is {published}, expected {dict(self.ends)}")
        rows, expected = self.copy.rows(), self.twin.rows(self.steps[self.at - 1].snapshot_id)
        found = [oracle.compare_rows(rows, expected)]
        for kind in ("staging", "quarantine"):
            have, want = (each.coordinates(kind, self.ends) for each in (self.copy, self.twin))
            if kind == "quarantine":  # a replay quarantines again
                have, want = list(set(have)), list(set(want))
            found.append(oracle.compare_coordinates(have, want, kind))
        expect(not any(found), "the copy differs from the undisturbed table: " + "; ".join(filter(None, found)))
        return f"{rows.total():,} rows equal those of an undisturbed table"


def encode(topic: str, ends: Mapping[int, int]) -> str:
    """Return offsets as `--to-offsets` takes them."""
    return json.dumps({topic: {str(p): end for p, end in sorted(ends.items())}})


def _killed(point: str, it: Rehearsal) -> str:
    before = dict(it.ends)
    it.at += 1
    reached = it.copy.kill_at(point, *it.arguments())
    expect(reached, f"the driver ended before it was to be killed ({point})")
    staged, published = it.copy.staged(), it.copy.published()
    expect(staged == dict(it.ends), f"staging is at {staged} after the kill, expected {dict(it.ends)}")
    wanted = dict(it.ends) if point == stop.AFTER_PUBLISH else before
    expect(published == wanted, f"the table is at {published} after the kill, expected {wanted}")
    if point == stop.BEFORE_LANDING:
        expect(it.copy.branches(), "no branch holds the rows after the kill")
    state = "published" if point == stop.AFTER_PUBLISH else "staged, not published"
    return f"killed with the batch {state}; the next run recovers: {it.run()}"


def _catalog_away(it: Rehearsal) -> str:
    name = table_names.catalog_name()
    if not name.isalnum():
        raise Skipped(f"the environment can't change the address of a catalog named {name!r}")
    properties = it.catalog.properties
    address = str(properties.get("uri", ""))
    kind = properties.get("type") or address.partition(":")[0]
    setting, value = "URI", f"http://{NOWHERE}"
    if kind == "glue":
        setting = "GLUE__ENDPOINT"
    elif address.startswith("sqlite"):
        value = "sqlite:////nowhere/iceberg.db"
    elif "://" in address:
        value = f"{address.partition('://')[0]}://{NOWHERE}/nowhere"
    settings = {f"PYICEBERG_CATALOG__{name.upper()}__{setting}": value}
    told = _refused(it, (2, 3), settings)
    return f"{told}; the next run goes on: {it.run(forward=True)}"


def _refused(it: Rehearsal, codes: Sequence[int], environment: Mapping[str, str]) -> str:
    """Run with settings that must fail without changing anything; returns the error."""
    before = it.copy.state()
    done = it.copy.command(*it.arguments(), "--patience", "10", **environment)
    expect(done.code in codes, f"exit code {done.code} instead of {' or '.join(map(str, codes))}: {done.error}")
    expect("Traceback" not in done.err and "bug in Sluice" not in done.err, f"no clear error: {done.error}")
    expect(it.copy.state() == before, "tables were changed by the run that failed")
    return f"exit code {done.code}, nothing changed ({done.error})"


def _schema_change(it: Rehearsal) -> str:
    table = it.copy.load()
    contract = it.copy.write_contract()
    if table is None or contract.auto:
        raise Skipped("the columns are those of the registry (`columns: auto`), and the contract names none to drop")
    dropped = _drop_a_column(it, [each for each in contract.columns if not each.is_valid_to])
    columns = table.schema().column_names
    try:
        done = it.copy.command(*_forward(it))
        expect(done.code == 0, f"the run ends with exit code {done.code}: {done.error}")
        review = it.copy.command("schema", "reject", it.copy.table)
        expect(review.code == 0 and dropped in review.out, f"no review of column {dropped}: {review.error}")
        answer = it.copy.command("schema", "reject", it.copy.table, *WHY)
        expect(answer.code == 0, f"the review can't be answered: {answer.error}")
        found = it.copy.load()
        expect(found and found.schema().column_names == columns, "the table's columns were changed")
    finally:
        it.copy.write_contract()
    return f"dropping column {dropped} waited for a review and was rejected; no row changed: {it.check()}"


def _forward(it: Rehearsal) -> tuple[str, ...]:
    it.at += 1
    return it.arguments()


def _drop_a_column(it: Rehearsal, columns: Sequence[Column]) -> str:
    """Write the contract without its last column that nothing needs, and return its name."""
    for column in reversed(columns):
        left = [each for each in it.copy.columns if each.get("name") != column.name]
        try:
            it.copy.write_contract(columns=left, schema_policy={"drop_column": "review"})
        except ContractError:
            continue
        return column.name
    it.copy.write_contract()
    raise Skipped("the contract has no column that can be dropped")


def _replay(it: Rehearsal) -> str:
    before = oracle.checksum(it.copy.rows())
    start = it.steps[max(it.at - 2, 0)].ends if it.at > 1 else it.copy.first_offsets
    ranges = {str(p): [start[p], end] for p, end in it.ends.items() if end > start.get(p, end)}
    done = it.copy.command("backfill", "run", it.copy.table, "--ranges", json.dumps(ranges), *WHY)
    expect(done.code == 0, f"the replay ends with exit code {done.code}: {done.error}")
    after = oracle.checksum(it.copy.rows())
    expect(before == after, f"the checksum was {before} and is {after}")
    return f"{json.dumps(ranges)} replayed, checksum {after} before and after: {it.check()}"


def _rollback(it: Rehearsal) -> str:
    it.run(forward=True)
    target, ends = [each for each in it.copy.commits() if each[1] != dict(it.ends)][-1]
    done = it.copy.command("rollback", it.copy.table, "--to-snapshot", str(target.snapshot_id), *WHY)
    expect(done.code == 0, f"the rollback ends with exit code {done.code}: {done.error}")
    expect(it.copy.published() == ends, f"the cursor is {it.copy.published()} after the rollback, expected {ends}")
    return f"rolled back to snapshot {target.snapshot_id}; the next run publishes again: {it.run()}"


def _expire(it: Rehearsal) -> str:
    it.copy.write_contract(maintenance={"snapshot_age": "1s", "min_snapshots": 1, "staging_retention": "30d"})
    try:
        time.sleep(2)
        before = it.copy.count_snapshots()
        done = it.copy.command("maintain", "run", "expire_snapshots", it.copy.table)
        expect(done.code == 0, f"the expiry ends with exit code {done.code}: {done.error}")
    finally:
        it.copy.write_contract()
    after = it.copy.count_snapshots()
    expect(after < before, f"no snapshot expired, there are {after}: {done.error}")
    expect(it.copy.published() == dict(it.ends), f"the cursor is {it.copy.published()}, expected {dict(it.ends)}")
    return f"{before - after} of {before} snapshots expired, cursor kept; the next run goes on: {it.run(forward=True)}"


def _out_of_retention(it: Rehearsal) -> str:
    state = broker.describe_topics(it.client, [it.copy.topic])[it.copy.topic]
    marks = state.watermarks if isinstance(state, broker.TopicState) else {}
    lost = {p: (max(each.start - LOST, 0), each.start) for p, each in marks.items() if each.start > 0}
    if not lost:
        raise Skipped("the topic still has its first record, and a rehearsal deletes none")
    starts = {p: lost[p][0] if p in lost else each.end for p, each in marks.items()}
    ends = {p: min(each.start + LOST_READ, each.end) if p in lost else each.end for p, each in marks.items()}
    copy = it.make_lost_copy()
    copy.write_contract(start=starts)
    run = ("run", copy.group, "--to-offsets", encode(copy.topic, ends))
    stopped = copy.command(*run)
    expect(stopped.code == 3, f"exit code {stopped.code} instead of 3: {stopped.error}")
    told = stopped.out + stopped.err
    named = all(f"{first}" in told and f"{end}" in told for first, end in lost.values())
    expect(copy.table in told and named, f"the error does not name table and offsets {lost}: {stopped.error}")
    accepted = copy.command("gap", "accept", copy.table, *WHY)
    expect(accepted.code == 0, f"the gap can't be accepted: {accepted.error}")
    done = copy.command(*run)
    expect(done.code == 0, f"the run after it ends with exit code {done.code}: {done.error}")
    expect(copy.published() == ends, f"the cursor is {copy.published()}, expected {ends}")
    staged = copy.coordinates("staging", ends)
    early = [at for at in staged if at[1] < lost.get(at[0], (0, 0))[1]]
    expect(len(staged) == len(set(staged)) and not early, "staging has a record twice, or one that Kafka has lost")
    return f"stopped with exit code 3, naming {lost}; accepted, and {len(staged):,} records behind the gap are read"


def _deny_access(it: Rehearsal) -> str:
    config = broker.librdkafka_config()
    secret = next((each for each in PASSWORDS if config.get(each)), None)
    if secret is None:
        raise Skipped("the connection to Kafka has no password that could be wrong")
    wrong = json.dumps({**config, secret: "wrong"})
    return _refused(it, (2, 3), {"SLUICE_KAFKA_CONFIG": wrong})


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    Attributes:
        expected: the expected outcome, in one sentence.
        play: does it, and returns what happened.
        batches: how many further batches of records it takes.
    """

    expected: str
    play: Callable[[Rehearsal], str]
    batches: int = 0


SCENARIOS: Mapping[str, Scenario] = {
    "kill-after-stage": Scenario(
        "The records are staged and the table is unchanged. The next run publishes them once.",
        partial(_killed, stop.AFTER_STAGE),
        1,
    ),
    "kill-before-landing": Scenario(
        "The rows are on a branch that nobody reads, and the table is unchanged. The next run publishes them once.",
        partial(_killed, stop.BEFORE_LANDING),
        1,
    ),
    "kill-after-publish": Scenario(
        "The rows are in the table with their offsets. The next run publishes nothing twice.",
        partial(_killed, stop.AFTER_PUBLISH),
        1,
    ),
    "catalog-away": Scenario(
        "The run ends with exit code 2 or 3 and a clear error, and changes nothing. The next run goes on.",
        _catalog_away,
        1,
    ),
    "schema-change": Scenario(
        "A contract without a column waits for a review, and the table goes on with the column. A rejection changes no "
        "row.",
        _schema_change,
        1,
    ),
    "replay": Scenario("Records that the table has are replayed; number and checksum of its rows stay.", _replay),
    "rollback": Scenario(
        "The table goes back to the snapshot before the last batch, with its offsets. The next run publishes again.",
        _rollback,
        1,
    ),
    "expire": Scenario("Old snapshots expire, and the offsets stay known. The next run goes on.", _expire, 1),
    "out-of-retention": Scenario(
        "The run stops with exit code 3 and names the lost offsets. When they are accepted, the next run goes on.",
        _out_of_retention,
    ),
    "deny-access": Scenario(
        "With a wrong password the run ends with exit code 2 or 3 and a clear error, and changes nothing.", _deny_access
    ),
}
"""The scenarios in their order: a rollback needs the snapshots that `expire` removes."""
