"""Every error Sluice raises: two families, fields instead of prose, and what the operator can do.

A `RetryableError` may pass when the same step runs again; a `TerminalError` stops its table until somebody acts.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar


class SluiceError(Exception):
    """Base of all errors.

    Args:
        message: what is wrong, in one sentence.
        way_out: what the operator can do; the class's own advice when left out.
        fields: where it is: table, topic, partition, offsets, batch, ….
    """

    advice: ClassVar[str] = ""

    def __init__(self, message: str, *, way_out: str | None = None, **fields: Any) -> None:
        self.message = message
        self.way_out = self.advice if way_out is None else way_out
        self.fields = fields
        where = ", ".join(f"{name} {value}" for name, value in fields.items() if value is not None)
        super().__init__(
            message + (f" [{where}]" if where else "") + (f" Way out: {self.way_out}" if self.way_out else "")
        )


class RetryableError(SluiceError):
    """May pass by itself when the step runs again."""


class TerminalError(SluiceError):
    """Stays until somebody acts."""


class ContractError(TerminalError):
    """A contract, or the group settings beside it, is not valid."""


class ConfigError(TerminalError):
    """A setting outside the contracts (catalog, Kafka, paths) is missing or unusable."""


class BrokerUnavailableError(RetryableError):
    """Kafka did not answer."""

    advice = (
        "Check that the brokers of connection sluice_kafka are reachable; the next run continues from the same offsets."
    )


class BrokerRefusedError(BrokerUnavailableError):
    """Kafka does not let the user of connection sluice_kafka in, or there is no token to be had for it."""

    advice = (
        "Correct connection sluice_kafka: sasl.username and sasl.password, or with OAUTHBEARER "
        "sasl.oauthbearer.client.id, .client.secret and .scope. Where no token comes: does .token.endpoint.url answer, "
        "here and on Spark's machines, and has https.ca.location its certificate's CA? Spark's own log may tell more. "
        "The next run continues from the same offsets."
    )


class RegistryUnavailableError(RetryableError):
    """The schema registry did not answer, and a schema that is needed was never seen before."""

    advice = (
        "Check that the schema registry of connection sluice_registry is reachable. The records are staged, nothing is "
        "guessed and nothing was set apart: the next run publishes them."
    )


class SchemaMissingError(RetryableError):
    """Columns are to come from a subject's newest schema, and nothing is registered under it."""

    advice = (
        "Let a producer register its schema, or name the subject in the contract: `- auto: {subject: …}`. The records "
        "are staged; a table that exists goes on with the columns that it has."
    )


class CatalogUnavailableError(RetryableError):
    """The Iceberg catalog did not answer in time."""

    advice = "Nothing is lost: the next run looks up what was committed and goes on from there."


class TableUnavailableError(RetryableError):
    """The catalog answers, but it, or the storage below it, does not do for one table what it does for others."""

    advice = (
        "See whether Sluice's user may make, read and change this table in the catalog, and write to its folder. The "
        "group's other tables go on."
    )


class ClockBehindError(RetryableError):
    """This machine's clock is behind a table's last commit; what it would write, Iceberg's Java could not read."""

    advice = (
        "Set the clocks of all machines that write to the catalog alike (NTP). Where it is the table's last commit "
        "that was stamped in the future, wait until then: nothing is lost, as long as Kafka keeps what is unread."
    )


class PlanLostError(RetryableError):
    """Another planner wrote a plan for the same topic first."""

    advice = "Nothing to do: the retry picks up the plan that won."


class FencedError(RetryableError):
    """The table's main branch moved while this attempt was at work, so that its result was refused."""

    advice = "Nothing to do: the retry starts from the table's new head."


class RejectedDifferError(RetryableError):
    """Records of a batch were judged otherwise when they were read again for quarantine; main was not moved."""

    advice = (
        "Nothing to do: the batch is read anew. If it comes again, look for an expression of the contract whose "
        "outcome changes from one reading to the next; else keep the log, and report it."
    )


class TopicMissingError(TerminalError):
    """The topic does not exist."""

    advice = "Create the topic, or correct `topic:` in the contract; one that a pattern matched goes into its `omit:`."


class TopicForbiddenError(TerminalError):
    """Kafka does not let the user of connection sluice_kafka see the topic."""

    advice = "Grant Describe, DescribeConfigs and Read on the topic to that user; the next run goes on."


class TopicRecreatedError(TerminalError):
    """The topic was deleted and created again: its offsets no longer mean the records that were read."""

    advice = (
        "The records of the old topic that were not read are gone. Give the new topic another name and put that name "
        "into the contract: the table goes on, and keeps the old records (an upsert table then needs `order:`)."
    )


class OffsetsLostError(TerminalError):
    """Records were deleted from Kafka before they were read."""

    advice = (
        "Raise the topic's retention. The range can't be read from Kafka any more; the table stays as it is "
        "until an operator accepts the gap: DAG accept_gap, or `python -m sluice gap accept`."
    )


class StagingTrimmedError(TerminalError):
    """A table needs raw records that staging no longer holds."""

    advice = (
        "Staging keeps the records of a published batch for `maintenance.staging_retention`; nobody else may delete "
        "any. A table that was put back to an old snapshot: no DAG or command puts it forward again, only SQL by hand "
        "in Spark: CALL system.set_current_snapshot('<table>', <snapshot>), as long as a newer one that held "
        "them is among `<table>.snapshots`; its offsets come with it, and so does all that was undone. Raise "
        "`snapshot_age` if rollbacks must reach further. A table that is new on an old topic: its history must be "
        "loaded anew, from Kafka as far as that still has it. It stays as it is until an operator gives them up for "
        "it: DAG accept_gap, or `python -m sluice gap accept TABLE`."
    )


class OffsetsBeyondEndError(TerminalError):
    """The cursor lies beyond the end of the partition: the log was truncated."""

    advice = "Find out what truncated the partition (unclean leader election, a restored broker) before reading on."


class PartitionsGoneError(TerminalError):
    """Partitions that were read before are no longer there."""

    advice = "Kafka never removes partitions: look whether the topic was deleted and created again."


class OffsetsMissingError(TerminalError):
    """Offsets are missing inside a range of a topic that is neither compacted nor declared transactional."""

    advice = "If producers write this topic in transactions, set `transactional: true` in its contracts."


class CompactedDeletesError(TerminalError):
    """A compacted topic may hold a delete's tombstone alone, and the contract does not say what that means."""

    advice = (
        "Say it in the contract: `cdc.tombstones: delete`, where the record's key names the row and `order` takes no "
        "columns; or `ignore`, where `min.compaction.lag.ms` leaves time enough to read every delete."
    )


class TableDamagedError(TerminalError):
    """A metadata file, manifest list or manifest that the table names is not there or can't be read."""

    advice = (
        "Restore the file from the storage's versions or a backup, or register the table at an older metadata file "
        "(catalog.register_table): Sluice goes on from the offsets that it carries."
    )


class EqualityDeletesError(TerminalError):
    """Another engine deleted rows of the table by their values; which are left only an engine can tell."""

    advice = (
        "Let Spark write the files anew without those rows: CALL system.rewrite_data_files(table => '…', options => "
        "map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')). What was deleted from staging is then "
        "missed by name."
    )


class CursorUnknownError(TerminalError):
    """Neither the table's snapshots, nor its tag, nor the ledger tell which offsets the table holds."""

    advice = (
        "Roll the table back to a snapshot that carries `sluice.published-through` or `sluice.next-offsets`, "
        "or restore the tag."
    )


class RefusedError(TerminalError):
    """What an operator asked for can't be done, or not as it was asked; nothing was changed."""


class AddressMismatchError(TerminalError):
    """A table names files by another scheme or authority than storage lists them; no file can be told an orphan."""

    advice = (
        "Nothing was removed. Write the warehouse's address in one way everywhere (s3 or s3a, with or without a port); "
        "files that were named in the other way go when their snapshots expire."
    )


class FolderSharedError(TerminalError):
    """Another table's files lie in a table's folder: a clean-up would take them for orphans."""

    advice = (
        "Nothing was removed. Give one of them a folder of its own, and write an old table anew there (CREATE TABLE … "
        "LOCATION … AS SELECT): files stay where they were, whatever location or write.data.path say now. Drop the old "
        "one without PURGE, which may take this one's files. Until then this one's orphan files stay."
    )


class SchemaChangeError(TerminalError):
    """The contract and the table disagree on columns, identifier or partitioning."""

    advice = (
        "Put the contract back as it was, set another `schema_policy:` for that kind of change, or write to a new "
        "table name and backfill it."
    )


class BlockedError(TerminalError):
    """A batch holds more bad records than the contract tolerates; it is staged, not published."""

    advice = (
        "Look at the quarantine table, then repair the producer or the contract (columns, errors.max_ratio, "
        "errors.max_count); the batch is published from staging by the next run."
    )


class ExpectationsFailedError(BlockedError):
    """An expectation of severity `block` does not hold for a batch; it is staged, not published."""

    advice = (
        "Look at the batch's results in sluice.quality (`status TABLE` shows them). If the data is right, change the "
        "contract's `expectations` (bounds, or severity: warn); if it is wrong, severity: quarantine_rows sets apart "
        "the rows that fail. The next run publishes the batch from staging."
    )


class OrderUnknownError(TerminalError):
    """One key was met in two partitions, and the contract names no order between them."""

    advice = (
        "Name `order:` in the contract, for example `order: [_kafka_timestamp]`. Where its file names one already, the "
        "file waits for an answer: see `python -m sluice schema TABLE`, and answer it in the DAG review_schema."
    )


class BatchOrderError(TerminalError):
    """A batch was asked for before the one that comes before it."""

    advice = (
        "Nothing to do where the table was rolled back while the run was at work: the next run goes on from there. "
        "Else keep the log, and report it."
    )


class AuditError(TerminalError):
    """What a write left on its branch is not what the batch holds; main was not moved."""

    advice = "This should not happen: keep the log and the branch's snapshot, and report it."


class InvalidReplayError(TerminalError):
    """What a slice of a backfill left on its branch does not stand the look at it; main was not moved."""


class LedgerError(TerminalError):
    """The ledger contradicts itself or can't be read."""

    advice = "Run `python -m sluice ledger rebuild`: the tables hold everything that is needed."


def naming(error: SluiceError, table: str) -> SluiceError:
    """The same error, naming the table that it stops."""
    return type(error)(error.message, way_out=error.way_out, **{"table": table, **error.fields})


def first_line(error: BaseException) -> str:
    """The error's type and the first line of what it says, at most 300 characters."""
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}"[:300].rstrip(": ")


def discreet(text: str) -> str:
    """What an error says, without the files and addresses in it: they name tables of which not everybody may know."""
    return re.sub(r"[^\s'\"(]*/[^\s'\"]*/[^\s'\"]*", "…", text)


def gone(error: FileNotFoundError) -> str:
    """What is said of a file that a table's metadata names and that storage does not have."""
    return f"A file is gone: {first_line(error)}"


def exit_code(error: BaseException | None) -> int:
    """The exit code of a job or command that ended with `error`: 0, 2 (retryable), 3 (terminal) or 1 (a bug)."""
    if error is None:
        return 0
    return 2 if isinstance(error, RetryableError) else 3 if isinstance(error, TerminalError) else 1
