"""Writes a table's offsets in the form that another system starts from. In: the cursor. Out: text; nothing changes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping

from sluice.errors import RefusedError
from sluice.offsets import Offsets

TopicOffsets = Mapping[str, Offsets]


def _as_group(offsets: TopicOffsets) -> str:
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows((t, p, o) for t, each in offsets.items() for p, o in each.items())
    return lines.getvalue().rstrip("\n")


def _as_connect(offsets: TopicOffsets) -> str:
    entries = [
        {"partition": {"kafka_topic": t, "kafka_partition": p}, "offset": {"kafka_offset": o}}
        for t, each in offsets.items()
        for p, o in each.items()
    ]
    return json.dumps({"offsets": entries})


def _as_spark(offsets: TopicOffsets) -> str:
    return json.dumps({t: {str(p): o for p, o in each.items()} for t, each in offsets.items()})


def _as_flink(offsets: TopicOffsets) -> str:
    if len(offsets) > 1:
        raise RefusedError(
            "Flink's option takes the offsets of one topic.",
            topics=sorted(offsets),
            next_step="Take --as group, set the offsets of its consumer group, and start by scan.startup.mode = "
            "'group-offsets'.",
        )
    return ";".join(f"partition:{p},offset:{o}" for each in offsets.values() for p, o in each.items())


FORMS: Mapping[str, Callable[[TopicOffsets], str]] = {
    "group": _as_group,
    "connect": _as_connect,
    "spark": _as_spark,
    "flink": _as_flink,
}
"""`group`: the file for `kafka-consumer-groups.sh --reset-offsets --from-file`. `connect`: the body of
`PATCH /connectors/NAME/offsets`. `spark`: the option `startingOffsets`. `flink`: `scan.startup.specific-offsets`."""


def write_offsets(offsets: TopicOffsets, form: str) -> str:
    """Return offsets as text, topics and partitions in order.

    Args:
        offsets: per topic and partition the next offset.
        form: one of `FORMS`.

    Raises:
        RefusedError: the form can't hold offsets of several topics.
    """
    return FORMS[form]({t: dict(sorted(each.items())) for t, each in sorted(offsets.items())})
