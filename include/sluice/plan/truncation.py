"""Finds topics whose log was truncated below what staging holds, and has grown beyond it since.

In: Kafka's answers and the staging tables. Out: per topic the staged offsets that have other records in Kafka now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka.admin import AdminClient

from sluice import offsets
from sluice.errors import LogTruncatedError, SluiceError
from sluice.iceberg import cursor, table_names
from sluice.kafka import broker, log_truncation
from sluice.kafka.log_truncation import ReadUpTo
from sluice.ledger import accepted_gaps
from sluice.ledger.backlog import StagingState
from sluice.ledger.ledger_rows import LedgerRow
from sluice.offsets import OffsetRange


def find_truncated(
    client: AdminClient,
    states: Mapping[str, broker.TopicState | SluiceError],
    staging: Mapping[str, StagingState],
    gaps: Sequence[LedgerRow],
) -> dict[str, SluiceError]:
    """Return the error of each topic that was truncated, unless an operator accepted that.

    Kafka is only asked about partitions that have had an election since they were read.

    Args:
        client: for Kafka's history of leader epochs.
        states: Kafka's answer for each topic.
        staging: the staging tables.
        gaps: the accepted gaps.

    Raises:
        BrokerUnavailableError: Kafka did not answer.
    """
    read: dict[tuple[str, int], ReadUpTo] = {}
    for topic, (table, last) in staging.items():
        state = states[topic]
        if isinstance(state, SluiceError) or table is None or last is None or last.topic_id != state.topic_id:
            continue
        for p, epoch in cursor.read_leader_epochs(table, last).items():
            marks, upto = state.watermarks.get(p), last.next_offsets.get(p, 0)
            # If nothing is left of what was read, or the log ends before it, that is another error or none.
            if marks and marks.start < upto <= marks.end and epoch < state.leader_epochs.get(p, epoch):
                read[topic, p] = ReadUpTo(upto, epoch)
    replaced: dict[str, dict[int, OffsetRange]] = {}
    for (topic, p), first in log_truncation.find_truncated(client, read).items():
        replaced.setdefault(topic, {})[p] = OffsetRange(first, read[topic, p].offset)
    errors: dict[str, SluiceError] = {}
    for topic, ranges in replaced.items():
        state = states[topic]
        if isinstance(state, broker.TopicState) and (error := _error(state, ranges, gaps)):
            errors[topic] = error
    return errors


def _error(
    state: broker.TopicState, ranges: Mapping[int, OffsetRange], gaps: Sequence[LedgerRow]
) -> LogTruncatedError | None:
    # Accepted for staging: the tables have these records, and no batch leaves them out.
    name = ".".join(table_names.staging(state.topic))
    accepted = accepted_gaps.accepted_ranges(gaps, state.topic, state.topic_id, name)
    left = {
        p: OffsetRange(max(r.start, state.watermarks[p].start), r.end)
        for p, r in sorted(ranges.items())
        if offsets.skip_accepted(max(r.start, state.watermarks[p].start), accepted.get(p, ())) < r.end
    }
    if not left:
        return None
    return LogTruncatedError(
        f"Topic {state.topic!r} was truncated by a leader election, and has other records than those staged: "
        f"{{partition: (first, end)}} { {p: tuple(r) for p, r in left.items()} }.",
        topic=state.topic,
        topic_id=state.topic_id,
        lost={p: tuple(r) for p, r in left.items()},
    )
