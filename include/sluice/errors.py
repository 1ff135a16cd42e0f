"""Every error that Sluice raises: the message, the fields that locate it, and the operator's next step.

A `RetryableError` may pass when the step runs again; a `TerminalError` stops its table until the operator acts.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from sluice import dag_ids

# Control characters but the line feed and the tab, also those that change the direction of a text; and halves of
# characters, which no UTF-8 file or terminal takes.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return a text with its control characters escaped: names in schemas may hold sequences that terminals obey."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class SluiceError(Exception):
    """Base of all errors. Control characters in their texts are escaped.

    Args:
        message: what is wrong, in one sentence.
        next_step: what the operator can do; by default the class's `advice`.
        fields: where it happened: table, topic, partition, offsets, batch, …; those that are None are left out.
    """

    advice: ClassVar[str] = ""

    def __init__(self, message: str, *, next_step: str | None = None, **fields: Any) -> None:
        self.message = message = printable(message)
        self.next_step = self.advice if next_step is None else printable(next_step)
        self.fields = fields
        where = f" [{self.where}]" if self.where else ""
        super().__init__(message + where + (f" Next step: {self.next_step}" if self.next_step else ""))

    @property
    def where(self) -> str:
        """The fields as text, in one line."""
        text = ", ".join(f"{name} {value}" for name, value in self.fields.items() if value is not None)
        return printable(text).replace("\n", "\\n")


class RetryableError(SluiceError):
    """May pass by itself when the step runs again."""


class TerminalError(SluiceError):
    """Stays until the operator acts."""


class ContractError(TerminalError):
    """A contract, or `groups.yaml`, is not valid."""


class ConfigError(TerminalError):
    """A setting outside the contracts (catalog, Kafka, paths) is missing or unusable."""


class BrokerUnavailableError(RetryableError):
    """Kafka did not answer."""

    advice = "Check that the brokers of connection sluice_kafka are reachable; the next run continues from its offsets."


class BrokerRefusedError(BrokerUnavailableError):
    """Kafka rejected the login of connection sluice_kafka, or no OAuth token could be obtained for it."""

    advice = (
        "Correct connection sluice_kafka: sasl.username and sasl.password; sasl.oauthbearer.client.id, .client.secret "
        "and .scope; for AWS_MSK_IAM the AWS credentials and policy; for GSSAPI principal, keytab, service name and "
        "krb5.conf. If no token is issued, check that .token.endpoint.url answers from here and from Spark's machines, "
        "and that https.ca.location holds its certificate's CA. The next run continues."
    )


class RegistryUnavailableError(RetryableError):
    """The schema registry did not answer, and a schema that is needed was never fetched before."""

    advice = (
        "Check that the schema registry of connection sluice_registry is reachable. The records are staged and none "
        "was quarantined for this; the next run publishes them."
    )


class SchemaIdReusedError(TerminalError):
    """The registry returns another schema for an id than the one by which records with that id were read before."""

    advice = (
        "If the registry was rebuilt, restore it from its backup, so that each id has the schema that its records were "
        "written with. Unpublished records are staged, and the next run publishes them."
    )


class SchemaMissingError(RetryableError):
    """The contract takes columns from a subject's newest schema, and none is registered under that subject."""

    advice = (
        "Let a producer register its schema, or name the subject in the contract: `- auto: {subject: …}`. The records "
        "are staged; an existing table continues with its current columns."
    )


class CatalogUnavailableError(RetryableError):
    """The Iceberg catalog did not answer in time."""

    advice = "Nothing is lost: the next run looks up what was committed and continues from there."


class TableUnavailableError(RetryableError):
    """The catalog answers, but it, or the storage below it, rejects operations on this table only."""

    advice = (
        "Check that Sluice's user may create, read and change this table in the catalog, and write to its folder. "
        "The group's other tables continue."
    )


class ClockBehindError(RetryableError):
    """This machine's clock is behind a table's last commit; Iceberg's Java library could not read a commit made now."""

    advice = (
        "Synchronise the clocks of all machines that write to the catalog (NTP). If the last commit was stamped in "
        "the future, wait until that time: nothing is lost while Kafka retains the unread records."
    )


class ExecutorsUnavailableError(RetryableError):
    """A Spark cluster started no executor for the application, or each one ended at once."""

    advice = "Look at an executor's standard error, and at docs/deploy/spark-cluster.md (`When no executor starts`)."


class PlanLostError(RetryableError):
    """Another planner wrote a plan for the same topic first."""

    advice = "No action: the retry picks up the plan that was written."


class FencedError(RetryableError):
    """The table's main branch moved during the write, so the result was rejected."""

    advice = "No action: the retry starts from the table's new head."


class RejectedDifferError(RetryableError):
    """Reading a batch's records again for quarantine gave another result than the first read; main was not moved."""

    advice = (
        "No action: the batch is read again. If this repeats, look for an expression in the contract whose result "
        "differs between reads; otherwise keep the log and report it."
    )


class TopicMissingError(TerminalError):
    """The topic does not exist."""

    advice = (
        "Create the topic, or correct `topic:` in the contract; if a pattern matched it, add it to `omit:`. "
        "`sluice demo` creates the topics of the demo's contracts."
    )


class TopicForbiddenError(TerminalError):
    """The user of connection sluice_kafka may not see the topic."""

    advice = "Grant that user Describe, DescribeConfigs and Read on the topic; the next run continues."


class TopicRecreatedError(TerminalError):
    """The topic was deleted and created again: its offsets now mean other records."""

    advice = (
        "If the topic was moved with its offsets: `sluice topic moved`. Else its unread records are gone. Give the "
        "new topic another name and put that name into the contract: the table continues (upsert needs `order:`)."
    )


class OffsetsLostError(TerminalError):
    """Records were deleted from Kafka before they were read."""

    advice = (
        "Raise the topic's retention. Kafka no longer holds the range; the table stays as it is until an operator "
        f"accepts the gap: DAG {dag_ids.ACCEPT_GAP}, or `sluice gap accept`."
    )


class StagingTrimmedError(TerminalError):
    """A table needs raw records that staging no longer holds."""

    advice = (
        "Staging keeps a published batch's records for `maintenance.staging_retention`; nothing but Sluice may delete "
        "them. If the table was rolled back too far, move it forward with Spark SQL: CALL "
        "system.set_current_snapshot('<table>', <snapshot>), as long as a newer snapshot with these batches is in "
        "`<table>.snapshots`; this restores its offsets and everything the rollback undid. Raise `snapshot_age` if "
        "rollbacks must reach further back. If the table is new on an old topic, load its history again from Kafka, "
        f"as far as Kafka still has it. To skip these batches permanently: DAG {dag_ids.ACCEPT_GAP}, or "
        "`sluice gap accept TABLE`."
    )


class OffsetsBeyondEndError(TerminalError):
    """The committed offset is beyond the partition's log end offset: the log was truncated."""

    advice = "Find out what truncated the partition (unclean leader election, a restored broker) before reading on."


class LogTruncatedError(TerminalError):
    """A leader election truncated the log below the committed offset, and other records took those offsets."""

    advice = f"Repair the tables (docs/operate/gaps.md, `The log was truncated`), then go on: DAG {dag_ids.ACCEPT_GAP}."


class PartitionsGoneError(TerminalError):
    """Partitions that were read before no longer exist."""

    advice = "Kafka never removes partitions: check whether the topic was deleted and created again."


class OffsetsMissingError(TerminalError):
    """Offsets are missing inside a range of a topic that is neither compacted nor declared transactional."""

    advice = "If producers write this topic in transactions, set `transactional: true` in its contracts."


class CompactedDeletesError(TerminalError):
    """A compacted topic may keep only a delete's tombstone, and the contract does not say what a tombstone means."""

    advice = (
        "Set `cdc.tombstones: delete` in the contract if the record's key names the row and `order` uses no columns; "
        "or `ignore` if `min.compaction.lag.ms` leaves enough time to read every delete."
    )


class TableDamagedError(TerminalError):
    """A metadata file, manifest list or manifest that the table references is missing or can't be read."""

    advice = (
        "Restore the file from the storage's versions or a backup, or register the table at an older metadata file "
        "(catalog.register_table): Sluice continues from the offsets in that file."
    )


class NameCollisionError(TerminalError):
    """Two topics or tables have the same name for one of Sluice's own tables, or for a report."""

    advice = (
        "Nothing was written. These names have `_` for other characters and a short hash, and some catalogs ignore "
        "case. Rename one of the two topics, or `table:` in one of the two contracts. If no contract uses the owner "
        "any more, rename or drop the table that it left behind."
    )


class EqualityDeletesError(TerminalError):
    """Another engine wrote equality deletes; Sluice can't tell which rows are left."""

    advice = (
        "Apply the deletes by rewriting the files in Spark: CALL system.rewrite_data_files(table => '…', options => "
        "map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')). Records that were deleted from "
        "staging are then reported as missing."
    )


class OtherWriterError(TerminalError):
    """Another engine changed rows of the table, and the contract has `other_writers: stop`."""

    advice = "Roll the table back, or set `other_writers: warn` in the contract for a run."


class CursorUnknownError(TerminalError):
    """Neither the table's snapshots, nor its tag, nor its earlier metadata files record which offsets it holds."""

    advice = (
        "Roll the table back to a snapshot that carries `sluice.published-through` or `sluice.next-offsets`, "
        "or restore the tag. If none is left, see docs/operate/disaster-recovery.md."
    )


class RequirementsNotEnforcedError(TerminalError):
    """The catalog accepted a commit whose requirement did not hold; nothing is planned in such a catalog."""

    advice = (
        "Use a catalog that enforces the requirements of commits (assert-ref-snapshot-id in Iceberg's REST "
        "specification), or a version of it that does; the next plan checks again. Don't write to it with several "
        "writers until then."
    )


class RefusedError(TerminalError):
    """An operator's request can't be carried out as given; nothing was changed."""


class AddressMismatchError(TerminalError):
    """A table names its files by another scheme or host than the storage; orphan files can't be identified."""

    advice = (
        "Nothing was removed. Write the warehouse's address in one way everywhere (s3 or s3a, with or without a port); "
        "files with the other address are removed when their snapshots expire."
    )


class FolderSharedError(TerminalError):
    """Another table's files are in this table's folder: orphan clean-up would remove them."""

    advice = (
        "Nothing was removed. Give each table its own folder: recreate one of them elsewhere (CREATE TABLE … LOCATION "
        "… AS SELECT), since existing files stay where they are whatever location or write.data.path say. Drop the old "
        "table without PURGE, which could remove the other table's files. Until then this table's orphan files stay."
    )


class SchemaChangeError(TerminalError):
    """The contract and the table disagree on columns, identifier or partitioning."""

    advice = (
        "Restore the contract, set another `schema_policy:` for that kind of change, or write to a new table name and "
        "backfill it."
    )


class BlockedError(TerminalError):
    """A batch has more failed records than the contract tolerates; it is staged, not published.

    Attributes:
        records: how many records the batch has, as far as they were counted.
        rejected: how many of these are quarantined.
    """

    records: int | None = None
    rejected: int | None = None
    advice = (
        "Look at the quarantine table, then correct the producer or the contract (columns, errors.max_ratio, "
        "errors.max_count); the next run publishes the batch from staging. To publish this batch as it is: DAG "
        f"{dag_ids.PUBLISH_BLOCKED}, or `sluice publish-blocked`."
    )


class ExpectationsFailedError(BlockedError):
    """An expectation of severity `block` failed for a batch; it is staged, not published."""

    advice = (
        "Look at the batch's results in sluice.quality (`status TABLE` shows them). If the data is right, change the "
        "contract's `expectations` (bounds, or severity: warn); if it is wrong, severity: quarantine_rows quarantines "
        "the rows that fail. The next run publishes the batch from staging."
    )


class OrderUnknownError(TerminalError):
    """One key occurs in two partitions, and the contract does not say which version is newer."""

    advice = (
        "Set `order:` in the contract, for example `order: [_kafka_timestamp]`. If it is set already, the change "
        f"awaits review: see `sluice schema TABLE`, and decide in the DAG {dag_ids.REVIEW_SCHEMA}."
    )


class BatchOrderError(TerminalError):
    """A batch was to be published before its predecessor."""

    advice = (
        "No action if the table was rolled back during the run: the next run continues from there. Otherwise keep the "
        "log and report it."
    )


class AuditError(TerminalError):
    """A write's branch does not hold what the batch holds; main was not moved."""

    advice = "This is a bug: keep the log and the branch's snapshot, and report it."


class InvalidReplayError(TerminalError):
    """The branch of a backfill's slice failed validation; main was not moved."""


class LedgerError(TerminalError):
    """The ledger contradicts itself or can't be read."""

    advice = "Run `sluice ledger rebuild`: the tables hold everything that is needed."


def with_table(error: SluiceError, table: str) -> SluiceError:
    """Return a copy of the error that names the table it stops."""
    return type(error)(error.message, next_step=error.next_step, **{"table": table, **error.fields})


def first_line(error: BaseException) -> str:
    """Return the error's type and the first line of its text, at most 300 characters."""
    first = (printable(str(error)).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:300].rstrip(": ")


def exit_code(error: BaseException | None) -> int:
    """Return the exit code for `error`: 0 if None, 2 if retryable, 3 if terminal, 1 otherwise (a bug)."""
    codes = {RetryableError: 2, TerminalError: 3}
    return 0 if error is None else next((code for kind, code in codes.items() if isinstance(error, kind)), 1)
