"""`columns: auto`: lists the columns of a subject's newest schema in the contract, at plan time, without a JVM.

A new schema is then a contract change like any other. The table stores its columns: publishing asks no registry.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sluice.contract.columns import Column
from sluice.contract.contract import Contract
from sluice.contract.document import format_location
from sluice.contract.suggestions import did_you_mean
from sluice.contract.validation_messages import describe_errors
from sluice.contract.values import quote, quote_name, root_name
from sluice.errors import SchemaChangeError, SchemaMissingError
from sluice.kafka.registry import SchemaRegistry, WriterSchema, candidate_subjects

if TYPE_CHECKING:
    from sluice.formats.convert import SchemaField


def find_subject(contract: Contract) -> str:
    """The subject whose newest schema defines the columns."""
    subject = contract.auto.subject if contract.auto else None
    return subject or candidate_subjects(contract.topics[0])[0]


def resolve_columns(contract: Contract, registry: SchemaRegistry | None = None) -> Contract:
    """The contract with every column listed; the same contract where it lists them already.

    Raises:
        RegistryUnavailableError: the registry did not answer.
        SchemaMissingError: nothing is registered under the subject yet.
        SchemaChangeError: a field can't become a column, or the schema contradicts the contract.
        ConfigError: no registry is configured, or its address is wrong.
    """
    if contract.auto is None:
        return contract
    subject = find_subject(contract)
    schema = (registry or SchemaRegistry()).newest(subject)
    if schema is None:
        raise SchemaMissingError(f"The registry has no schema of subject {subject}.", table=contract.table)
    return list_columns(contract, schema, subject)


def list_columns(contract: Contract, schema: WriterSchema, subject: str) -> Contract:
    """A contract with `auto`, with the columns of a schema listed instead.

    Raises:
        SchemaChangeError: a field can't become a column, or the schema contradicts the contract.
    """
    from sluice.formats.avro_schema import select_branch
    from sluice.formats.convert import SchemaMismatchError, schema_failures_as_mismatch
    from sluice.formats.inferred_columns import FIELD_READERS  # with Arrow and Spark's types

    where = {"table": contract.table, "subject": subject, "schema": schema.id}
    kind, read = FIELD_READERS[contract.value.format]
    if schema.kind != kind:
        raise SchemaChangeError(
            f"The newest schema of the subject has type {schema.kind}, but value.format is {contract.value.format}.",
            next_step="Correct value.format, or name another subject: - auto: {subject: …}.",
            **where,
        )
    try:
        with schema_failures_as_mismatch():
            fields = list(read(select_branch(schema, contract.value.types), _excluded_fields(contract)))
        columns = [_column(each, contract) for each in fields if each.type]
    except SchemaMismatchError as error:
        what = f"Field {quote(error.path)} of the newest schema {error.reason}." if error.path else f"{error.reason}."
        raise SchemaChangeError(
            f"The newest schema can't become columns. {what}", next_step=_next_step(error.path), **where
        ) from error
    # A misspelt name would let in the field that it should keep out.
    names = [each.name for each in fields]
    if unknown := [name for name in contract.auto.omit if name not in names] if contract.auto else []:
        raise SchemaChangeError(
            f"The newest schema has no field {quote(unknown[0])} to omit{did_you_mean(unknown[0], names)}.",
            next_step="Correct the contract: - auto: {omit: […]}.",
            **where,
        )
    given = {name: getattr(contract, name) for name in contract.model_fields_set - {"auto", "topic_pattern"}}
    given["topic"] = contract.topics or contract.topic_pattern
    try:
        return Contract.model_validate({**given, "columns": (*contract.columns, *columns)})
    except ValidationError as error:
        found = "; ".join(
            f"{format_location(at)}: {message}" for at, message in describe_errors(error, Contract, given)
        )
        raise SchemaChangeError(
            f"The contract contradicts the columns of the newest schema: {found}.",
            next_step=_next_step(""),
            **where,
        ) from error


def _excluded_fields(contract: Contract) -> frozenset[str]:
    """Fields of the value that get no column: another column or input reads them, or `omit` names them."""
    read = {each.path[0] for each in (*contract.columns, *contract.inputs) if each.path}
    return frozenset(read | set(contract.auto.omit if contract.auto else ()))


def _column(each: SchemaField, contract: Contract) -> Column:
    from sluice.formats.convert import SchemaMismatchError
    from sluice.formats.logical_types import unit_of

    required = each.name in (*contract.order, contract.valid_from)
    body: dict[str, Any] = {"name": each.name, "type": str(each.type), "unit": unit_of(each.type), "required": required}
    try:
        return Column.model_validate({**body, "doc": each.doc if isinstance(each.doc, str) else None})
    except ValidationError as error:
        (reason, *_) = [message for _, message in describe_errors(error, Column, body)]
        raise SchemaMismatchError(quote_name(each.name), f"can't become a column: {reason}") from error


def _next_step(path: str) -> str:
    name = quote_name(root_name(path))
    written = name if name.isidentifier() else json.dumps(name, ensure_ascii=False)
    source, omit = (written, f"[{written}]") if name else ("…", "[…]")
    return (
        f"List the field among the columns, before auto: {{name: …, type: …, source: {source}}}. Or leave it out: "
        f"- auto: {{omit: {omit}}}. An existing table keeps its columns meanwhile; a new table is not created before "
        "that."
    )
