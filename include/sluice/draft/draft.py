"""Drafts the contract of one topic from a sample of it and its newest schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.draft.forms import FORMATS, Form, SchemaLookup, find_form
from sluice.draft.keys import draft_key
from sluice.draft.model import Draft, KeyDraft, Proposal, ValueDraft
from sluice.draft.partitions import propose_partitions
from sluice.draft.rows import Rows, propose_rows
from sluice.draft.sample import Sample
from sluice.draft.values import draft_value
from sluice.errors import ConfigError
from sluice.kafka.registry import WriterSchema


@dataclass(frozen=True)
class Wishes:
    """What the author asks for.

    Attributes:
        table: Name of the table.
        group: Name of the group; empty if the contract need not say it.
        owner: Who is responsible; empty if the contract need not say it.
        subject: The subject of the values' schema; empty if the topic's name tells it.
        nested: Whether objects within JSON objects become structs instead of columns.
    """

    table: str
    group: str = ""
    owner: str = ""
    subject: str = ""
    nested: bool = False


def make_draft(sample: Sample, wishes: Wishes, lookup: SchemaLookup, newest: WriterSchema | None = None) -> Draft:
    """Return the draft of a contract.

    Args:
        sample: Records of the topic; there may be none if there is a schema.
        wishes: What the author asks for.
        lookup: Looks up schemas by id.
        newest: The newest schema of the values' subject, if there is one.

    Raises:
        ConfigError: There are neither fields nor a schema, or records name schemas and no registry is configured.
        SchemaChangeError: The schema can't become columns.
    """
    values = [each.value for each in sample.records]
    form = _with_newest(find_form(values, lookup), newest, sample.topic)
    value = draft_value(form, nested=wishes.nested)
    keys = [each.key for each in sample.records]
    key = draft_key(find_form(keys, lookup, key=True), keys)
    rows = propose_rows(sample, key, value)
    if not rows.columns:
        raise ConfigError(
            f"No record in the sample of topic {sample.topic} has a field that can become a column.",
            next_step="Sample more records with --sample, or write the contract by hand: docs/reference/contract.md.",
        )
    return Draft(
        head=_head(sample, value, key),
        settings=_settings(sample, wishes, key, value, rows),
        columns=rows.columns,
        inputs=value.inputs,
        closing=_closing(sample, rows),
        options=(*rows.options, *_auto_option(rows, value, wishes)),
        notes=(*value.notes, *rows.notes, *_id_note(form), *_header_note(sample)),
    )


def _with_newest(form: Form, newest: WriterSchema | None, topic: str) -> Form:
    """The form with the newest schema of the subject, which may have fields that no sampled record has."""
    if form.format is None and newest is None:
        raise ConfigError(
            f"Topic {topic} has no records with a value, and the registry has no schema for it.",
            next_step="Produce a record, register a schema, or name its subject with --subject.",
        )
    if newest is None or (form.format is not None and form.format != FORMATS[newest.kind]):
        return form
    evidence = form.evidence or "no record has a value"
    return Form(
        FORMATS[newest.kind], schema=newest, evidence=f"{evidence}; the newest schema has id {newest.id}", ids=form.ids
    )


def _head(sample: Sample, value: ValueDraft, key: KeyDraft) -> tuple[str, ...]:
    records = "record" if sample.count == 1 else "records"
    return (
        f"Drafted by `contract init` from the newest {sample.count} {records} of topic {sample.topic}.",
        f"Values: {value.evidence}.",
        f"{key.evidence[:1].upper()}{key.evidence[1:]}.",
        "Counts and forms are those of the sample. Correct what you know better, then run `contract check`.",
    )


def _settings(sample: Sample, wishes: Wishes, key: KeyDraft, value: ValueDraft, rows: Rows) -> dict[str, Proposal]:
    found = {"table": Proposal(wishes.table), "topic": Proposal(sample.topic)}
    if wishes.group:
        found["group"] = Proposal(wishes.group, "tables of one group share a DAG and a Spark application")
    if wishes.owner:
        found["owner"] = Proposal(wishes.owner, "who is responsible for the table")
    if key.format is not None:
        found["key"] = Proposal({"format": key.format})
    found["value"] = Proposal({"format": value.format})
    return {**found, **rows.settings}


def _closing(sample: Sample, rows: Rows) -> dict[str, Proposal]:
    if rows.settings["mode"].value != "append":
        return {}
    return {"partition_by": propose_partitions(rows.columns, sample)}


def _auto_option(rows: Rows, value: ValueDraft, wishes: Wishes) -> tuple[tuple[dict[str, Any], str], ...]:
    if not value.follows_schema:
        return ()
    auto: dict[str, Any] = {"subject": wishes.subject} if wishes.subject else {}
    key_columns = [c.entry() for c in rows.columns if c.from_key]
    return (({"columns": [*key_columns, {"auto": auto} if auto else "auto"]}, "follows the newest schema by itself"),)


def _header_note(sample: Sample) -> tuple[str, ...]:
    events = sum("ce_id" in each.headers and "ce_type" in each.headers for each in sample.records)
    if events * 2 <= sample.count:
        return ()
    return ("CloudEvents in binary mode: their attributes are in the records' headers, which no column can read",)


def _id_note(form: Form) -> tuple[str, ...]:
    if len(form.ids) < 2:
        return ()
    return (f"the sample's records have {len(form.ids)} schema ids: for a topic of several types see value.types",)
