"""Texts of the generated reference that no other source has: variables, columns of own tables, fields of answers.

The descriptions of columns stand here and not in the schemas: a table keeps the text that it was created with, so one
table would say something else than another.
"""

from __future__ import annotations

VARIABLES: dict[str, dict[str, str]] = {
    "Contracts and DAGs": {
        "SLUICE_CONTRACTS": "The folder of contracts. Default: `contracts` beside the package.",
        "SLUICE_CONTRACT_URL": "The address of a table's contract for readers; `{table}` stands for the table's name. "
        "It becomes the [table property](../guides/promises.md) `sluice.contract-url`.",
        "SLUICE_DAG_PREFIX": "The prefix of all DAG ids, the same for each part of Airflow and the command line. "
        "Default: none in a checkout, `sluice_` for an installed package.",
    },
    "Cost": {
        "SLUICE_PRICES": "The [price file](../operate/cost.md#prices), for Airflow's API server and the command line. "
        "Default: none; costs are shown without money.",
    },
    "Kafka and the schema registry": {
        "SLUICE_KAFKA_CONFIG": "librdkafka's settings as a JSON object, for the command line. In Airflow, tasks set it "
        "for the Spark driver from connection `sluice_kafka`.",
        "KAFKA_BOOTSTRAP_SERVERS": "Addresses of Kafka's brokers, where `SLUICE_KAFKA_CONFIG` is not set. Without "
        "both, the command line uses connection `sluice_kafka` of the Airflow that is configured.",
        "SLUICE_REGISTRY_CONFIG": "Settings of confluent-kafka's registry client as a JSON object, for the command "
        "line. In Airflow, it is set from connection `sluice_registry`.",
        "SCHEMA_REGISTRY_URL": "Address of the schema registry, where `SLUICE_REGISTRY_CONFIG` is not set. Without "
        "both, the command line uses connection `sluice_registry` of the Airflow that is configured.",
        "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO": "`user:password` for it.",
        "SCHEMA_REGISTRY_SSL_CA_LOCATION": "A file of PEM certificates that its certificate is checked with.",
        "SLUICE_SCHEMAS": "The folder in which schemas of the registry are cached. Default: `schemas` in "
        "`SLUICE_HOME`, else `sluice/schemas` in the user's cache (`XDG_CACHE_HOME`, else `~/.cache`).",
    },
    "Catalog": {
        "SLUICE_CATALOG": "The catalog's name in PyIceberg's configuration. Default: `lake`.",
        "SLUICE_NAMESPACE_PREFIX": "A prefix for the namespaces of all tables, such as `dev_`: "
        "[two Sluices in one catalog](../connect/platform.md#two-sluices-in-one-catalog). Default: none.",
        "PYICEBERG_CATALOG__LAKE__…": "PyIceberg's settings of the catalog `lake`, such as `…__TYPE`, `…__URI` and "
        "`…__WAREHOUSE`; or `.pyiceberg.yaml`.",
    },
    "Spark and its driver": {
        "SLUICE_JARS": "A folder whose jars are given to Spark. Without it, Spark must have the jars itself.",
        "JAVA_HOME": "Java 17 or 21, where drivers run.",
        "SLUICE_MASK_KEY": "The secret that `mask: sha256` hashes with, where the Spark driver runs.",
        "SLUICE_HOME": "A worker's folder for Spark's logs (`logs/`), the package as executors get it (`cache/`), "
        "files that are just being sent to a cluster's driver (`driver/`) and cached schemas. Default: `sluice-<uid>` "
        "in the temporary folder. For `make up`, the stack's folder; default: `.sluice` in the checkout.",
        "SLUICE_DRIVER_ENV": "Names of further variables that a [driver gets](#what-a-spark-driver-gets), separated by "
        "commas. `TEAM_*` stands for all that begin with `TEAM_`.",
        "SLUICE_DRIVER_FILES": "The file with settings and contracts for a driver "
        "[on a cluster](../deploy/cluster-mode.md). Tasks set it.",
        "SLUICE_SPARK_LOG": "The file of Spark's log. Tasks set it for the driver; for `sluice run` you may set it.",
    },
    "Reports": {
        "SLUICE_REPORTS": "The folder of the [reports](../operate/monitoring.md#reports), a URL that the catalog's "
        "file access can write to. Without it, none are written.",
        "SLUICE_REPORTS_RETENTION": "How long reports stay, such as `90d`. Without it, forever.",
    },
    "Command line": {
        "SLUICE_DEBUG": "`1`: an error shows its place in the code.",
        "NO_COLOR": "Any value: no colours.",
    },
    "The stack of `make up` and `make demo`": {
        "SLUICE_CACHE": "Where `make jars` keeps the jars. Default: `sluice` in the user's cache (`XDG_CACHE_HOME`, "
        "else `~/.cache`).",
        "SLUICE_IVY_SETTINGS": "A file of Ivy's settings for `make jars`: a mirror, or a proxy that asks for a "
        "password.",
        "SLUICE_KAFKA_PORT": "Kafka's port. Default: a free one, which the stack keeps.",
        "SLUICE_REGISTRY_PORT": "The schema registry's port; likewise.",
        "SLUICE_PAGES_PORT": "Airflow's port; likewise.",
        "SLUICE_SPARK_MASTER": "Spark's master for Airflow's connection, as `make up SPARK=…` sets it; the stack keeps "
        "it. Default: `local[2]`.",
        "SLUICE_PAGES_URL": "Airflow's address; in `.sluice/env`.",
        "SLUICE_PAGES_USER": "The user who logs in to it; in `.sluice/env`.",
        "SLUICE_PAGES_PASSWORD": "That user's password; in `.sluice/env`.",
        "SLUICE_STACK": "Marks the processes of a stack, so that `make down` ends these alone. Set by the stack.",
    },
}
"""Every variable that Sluice reads or sets, by what it is about."""

NO_VARIABLES = {"SLUICE_TIMESTAMP_MOVED", "SLUICE_ORDER_UNKNOWN", "SLUICE_TEST_CLUSTER", "SLUICE_TEST_THOROUGH"}
"""Words in the code that look like a user's variables: marks in Spark's errors and records, and a setting of tests."""

TABLES: dict[str, str] = {
    "sluice.offsets": "The ledger: which offsets were planned, staged, published or refused, by which run.",
    "sluice.quality": "A row per batch and [expectation](../guides/quality.md).",
    "sluice.maintenance": "A row per table and maintenance action.",
    "sluice.costs": "What each step of a Spark application used, per table: [what it costs](../operate/cost.md).",
    "sluice.pilot": "A row per comparison with another table, rehearsed failure, and decision to rely on a table.",
    "sluice.schemas": "Versions of contracts, reviews and their answers.",
    "sluice.writer_schemas": "The schema by which a topic's records with a schema id were read first. Only for formats "
    "with a schema registry.",
    "sluice_staging.<topic>": "The raw records of a topic, one partition per batch.",
    "sluice_quarantine.<table>": "The quarantined records of a table.",
    "sluice_deletes.<table>": "Mode upsert: the last delete of each key. It also has the columns of `identifier` and "
    "those of `order`.",
}

_SEQ = "number of the topic's batch; below zero: a slice of a backfill"
_KAFKA = {
    "_kafka_topic": "Kafka topic of the record",
    "_kafka_partition": "Kafka partition of the record",
    "_kafka_offset": "Kafka offset of the record",
    "_kafka_timestamp": "Kafka timestamp of the record",
}
_RECORD = {
    **_KAFKA,
    "batch_seq": "number of the batch that read the record; below zero: a slice of a backfill",
    "key": "the record's key",
    "value": "the record's value; null: a tombstone",
    "headers": "the record's headers",
    "_kafka_timestamp_ms": "Kafka's number, where it is [no valid timestamp](contract.md#kafkas-timestamp); -1: none",
}
_COUNTS = {
    "data_files": "data files",
    "delete_files": "delete files",
    "bytes": "bytes",
    "manifests": "manifests",
    "snapshots": "snapshots",
}

COLUMNS: dict[str, dict[str, str]] = {
    "sluice.offsets": {
        "run_id": "the Airflow run, or who ran the command",
        "topic": "the topic",
        "topic_id": "Kafka's id of the topic, which is another when the topic is created again",
        "batch_seq": _SEQ,
        "partition": "the partition; null in rows about a batch as a whole",
        "end_offset": "one past the last offset; equal to the start where nothing is read",
        "snapshots": "by table the snapshot that has the batch",
        "records": "records staged or published, or of the blocked batch",
        "rejected": "records that were quarantined",
        "seconds": "how long the step took, its commit included",
        "error": "why a table was blocked or failed, or an attempt was repeated",
        "who": "of an operator action or a backfill: who; or who wrote the row again",
        "why": "of an operator action or a backfill: the reason; state replayed: what changed",
        "oldest": "state staged: the least Kafka timestamp of the batch's records",
        "newest": "state staged: the greatest",
        "unread": "state staged: the consumer lag before the batch, up to Kafka's end at that time",
        "commit_seconds": "how much of `seconds` the commit took, until readers saw it",
        "exception": "class of the error, with its package, in Python or Java",
    },
    "sluice.quality": {
        "table": "the typed table",
        "topic": "the topic",
        "batch_seq": _SEQ,
        "expectation": "its type, as Great Expectations names it",
        "column": "the columns, separated by commas; empty if it is about the whole table",
        "success": "whether it passed; null: not evaluated",
        "unexpected": "rows that fail",
        "observed": "the statistic, if the expectation is about one",
        "low": "drift: the least that was accepted",
        "high": "drift: the most that was accepted",
        "values": "values of records as JSON, only if the contract shows them",
        "error": "why it could not be evaluated",
        "seconds": "how long all expectations of the batch took together",
        "too_long": "rows among those that fail whose text is too long for the regular expression",
        "parameters": "as the contract has them, as JSON; a long one is cut, with a digest",
    },
    "sluice.maintenance": {
        "table": "the table",
        "state": "begun; done; idle (nothing was needed any more); left (to the next run); failed; seen (where the "
        "table's files are); waits (the first table that was not assessed for lack of time)",
        "error": "why it failed",
        **{f"{name}_before": f"{text} before" for name, text in _COUNTS.items()},
        **{f"{name}_after": f"{text} after" for name, text in _COUNTS.items()},
    },
    "sluice.costs": {},
    "sluice.pilot": {},
    "sluice.schemas": {
        "at": "when it was recorded",
        "table": "the typed table",
        "version": "number of the version; of a review: the one that it would become",
        "contract_id": "digest of `contract`",
        "base_id": "of a review: that of the active contract",
        "kinds": "kinds of changes, as in [`schema_policy`](../guides/schema-changes.md)",
        "words": "the changes, in words",
        "schema_id": "state applied: Iceberg's id of the table's schema",
        "snapshot_id": "head of `main` at that time",
        "offsets": "by topic and partition the first later offset, as JSON",
        "contract": "states applied and rejected: the fields of the contract that decide what the table has, as JSON",
        "who": "who answered",
        "why": "the reason of the answer",
        "run_id": "the Airflow run, or who ran the command",
        "table_uuid": "Iceberg's: a table created again under this name has another",
    },
    "sluice.writer_schemas": {
        "run_id": "the Airflow run, or who ran the command",
        "topic": "the topic",
        "schema_id": "the registry's id",
        "registry": "the registry's address",
        "fingerprint": "digest of the schema, without its formatting",
        "references": "digest of the schemas that it references; null if one was deleted",
    },
    "sluice_staging.<topic>": {
        **{name: text for name, text in _RECORD.items() if name != "_kafka_topic"},
        "_kafka_timestamp_type": "whose timestamp it is: 0 the producer's, 1 the broker's, -1 none",
    },
    "sluice_quarantine.<table>": {
        **_RECORD,
        "error_class": "kind of error, see [what is wrong with a record](../guides/quarantine.md#error-classes)",
        "quarantined_at": "when it was quarantined",
    },
    "sluice_deletes.<table>": _KAFKA,
}
"""By table the columns that a schema says nothing about, or too little for a reader who does not know the code."""

API_FIELDS: dict[str, dict[str, str]] = {
    "": {
        "at": "when it happened, or was recorded",
        "topic": "the topic",
        "table": "the table",
        "batch": "number of the topic's batch",
        "batch_seq": _SEQ,
        "run_id": "the run",
        "error": "why, as text",
        "records": "number of records",
        "rejected": "how many of them were quarantined",
        "ranges": "by partition the offsets",
        "snapshot_id": "Iceberg's id of the snapshot",
        "unavailable": "why there is nothing newer, or something is missing",
        "expectation": "its type, as Great Expectations names it",
        "column": "the columns, separated by commas; empty if it is about the whole table",
        "severity": "warn, quarantine_rows or block",
        "parameters": "as the contract has them, as JSON",
        "held": "number of expectations that passed",
        "not_judged": "number of expectations that were not evaluated",
        "failed": "those that failed, as text",
        "tables": "the tables",
        "events": "the events, newest first",
        "start": "the earliest time that the answer is about",
        "cut": "lanes of which only the newest events are in the answer",
    },
    "AcceptedGap": {
        "partition": "the partition",
        "offsets": "the offsets that are skipped",
        "who": "who accepted the gap",
        "why": "the reason",
    },
    "DryRunAnswer": {"error": "why it cannot be done, as text"},
    "ErrorAnswer": {"detail": "the reason, as text"},
    "Event": {
        "lane": "what kind of event it is",
        "dag": "DAG of the run; `ingest` for that of the table's group; null if unknown",
    },
    "ExpectationAnswer": {
        "results": "its results, oldest first",
        "judged": "whether the contract still has it with this severity and these parameters",
    },
    "LastError": {"state": "blocked or failed"},
    "MaintenanceStatus": {
        "action": "rewrite_data_files, expire_snapshots or remove_orphan_files",
        "state": "how it ended",
        "told": "what it did, as text",
        "of": "empty for the table itself, else the name of its quarantine, deletes or staging table",
    },
    "OffsetRange": {"": "A range of offsets, `[start, end]`, the end exclusive."},
    "OpenBatch": {"state": "planned (not staged yet) or staged (not published to this table yet)"},
    "PartitionStatus": {
        "partition": "the partition",
        "low": "log start offset in Kafka",
        "published": "first offset that is not in the table",
        "staged": "first offset that is not in staging",
        "end": "last stable offset in Kafka",
        "lag": "unread offsets",
    },
    "PublishedOffsets": {
        "seq": "number of the last batch",
        "topic_id": "Kafka's id of the topic",
        "next_offsets": "by partition the first offset that is not in the table",
    },
    "ReadinessAnswer": {
        "subject": "what the line is about, see [readiness](../operate/monitoring.md#readiness)",
        "ready": "null if the facts are not there yet",
        "evidence": "the measured facts",
        "step": "the next step; empty if nothing need be done",
    },
    "Coordinates": {"partition": "the partition", "offset": "the offset"},
    "RiskStatus": {"kind": "what kind of risk, see [at risk](../operate/monitoring.md#at-risk)", "text": "the risk"},
    "SnapshotStatus": {
        "age_seconds": "its age",
        "batch": "number of the batch that it has last",
        "records": "rows that it added",
        "removed": "rows that it removed: deleted ones, and earlier versions of added ones",
        "step": "the step that made it",
    },
    "TableStatus": {
        "group": "its group",
        "mode": "the contract's mode",
        "owner": "the contract's owner",
        "exists": "whether the table exists; null if unknown",
        "topics": "the topics that feed it",
        "snapshot": "its last commit with offsets",
        "open_batches": "batches that are planned or staged, and not published",
        "slices": "slices of backfills that are not in the table",
        "quarantined": "quarantined records; null if unknown",
        "maintenance": "the last action of each kind",
        "freshness_promised_seconds": "the contract's freshness target",
        "freshness_now_seconds": "newest record in Kafka minus newest record in the table",
        "freshness_kept": "whether the target is met; null if there is none, or it is unknown",
        "lag_records": "unread offsets of all topics; null if one is unknown",
        "warnings": "the risks, as text",
        "unasked": "the sources (`kafka`, `catalog`) that did not answer, or only in part",
    },
    "TablesAnswer": {"at": "when the tables were read", "broken": "contracts that can't be read, with file and line"},
    "TableTimelineAnswer": {
        "at": "when the events were read",
        "standing": "the snapshot that readers saw at the time that was asked for",
        "trouble": "why `standing` is not known",
    },
    "TimelineAnswer": {"at": "when the events were read"},
    "TableAsOf": {"at": "the time that was asked for"},
    "TopicStatus": {
        "topic_id": "Kafka's id of the topic",
        "batch": "number of the last batch in the table",
        "staged_batch": "number of the last batch in staging",
        "partitions": "its partitions",
        "stream_clock": "timestamp of the newest record in Kafka",
        "table_clock": "timestamp of the newest record in the table",
        "given_up": "accepted gaps",
    },
}
"""By schema the fields of answers that no docstring describes; those of the empty name are the same in several."""
