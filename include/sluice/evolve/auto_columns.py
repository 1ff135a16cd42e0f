"""`columns: auto`: a contract whose columns the newest schema of a subject gives becomes one that lists them.

At plan time, without a JVM. From there it goes the way of any contract that changed: what the table was made with is
kept by the table itself, so that nobody who publishes asks the registry for columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sluice.contract.columns import Column
from sluice.contract.contract import Contract
from sluice.contract.document import path_text
from sluice.contract.messages import explain
from sluice.contract.values import nearest, shown
from sluice.errors import SchemaChangeError, SchemaMissingError
from sluice.kafka.registry import Registry, subjects_of

if TYPE_CHECKING:
    from sluice.formats.inferred_columns import Field


def subject_of(contract: Contract) -> str:
    """The subject whose newest schema gives the columns."""
    named = contract.auto.subject if contract.auto else None
    return named or subjects_of(contract.topics[0])[0]


def resolved(contract: Contract, registry: Registry | None = None) -> Contract:
    """The contract with every column listed; the same where it lists them already.

    Raises:
        RegistryUnavailableError: the registry does not answer.
        SchemaMissingError: nothing is registered under the subject yet.
        SchemaChangeError: the schema has what no column can hold or be called, or contradicts the contract.
        ConfigError: no registry is named, or what answers is none.
    """
    if contract.auto is None:
        return contract
    from sluice.formats.avro_schema import alone
    from sluice.formats.convert import UnfitError, reading_schema
    from sluice.formats.inferred_columns import READERS  # with Arrow and Spark's types

    subject = subject_of(contract)
    schema = (registry or Registry()).newest(subject)
    if schema is None:
        raise SchemaMissingError(f"The registry has no schema of subject {subject}.", table=contract.table)
    where = {"table": contract.table, "subject": subject, "schema": schema.id}
    kind, read = READERS[contract.value.format]
    if schema.kind != kind:
        raise SchemaChangeError(
            f"The subject's newest schema is of the kind {schema.kind}, and the contract's format "
            f"{contract.value.format}.",
            way_out="Correct value.format, or name another subject: - auto: {subject: …}.",
            **where,
        )
    try:
        with reading_schema():
            fields = list(read(alone(schema, contract.value.types), _taken(contract)))
        columns = [_column(each, contract) for each in fields if each.type]
    except UnfitError as error:
        what = f"Field {shown(error.path)} of the newest schema {error.words}." if error.path else f"{error.words}."
        raise SchemaChangeError(
            f"Of the newest schema no columns can be made. {what}", way_out=_way_out(error.path), **where
        ) from error
    # A name that is misspelt would let through what is to be kept out.
    there = [each.name for each in fields]
    if strange := [name for name in contract.auto.omit if name not in there]:
        raise SchemaChangeError(
            f"The newest schema has no field {shown(strange[0])} to omit{nearest(strange[0], there)}.",
            way_out="Correct the contract: - auto: {omit: […]}.",
            **where,
        )
    given = {name: getattr(contract, name) for name in contract.model_fields_set - {"auto", "matching"}}
    given["topic"] = contract.topics or contract.matching
    try:
        return Contract.model_validate({**given, "columns": (*contract.columns, *columns)})
    except ValidationError as error:
        found = "; ".join(f"{path_text(at)}: {message}" for at, message in explain(error, Contract, given))
        raise SchemaChangeError(
            f"The contract does not go with the columns of the newest schema: {found}.",
            way_out=_way_out(""),
            **where,
        ) from error


def _taken(contract: Contract) -> frozenset[str]:
    """Fields of the value that are read otherwise, in whole or in part, or that nobody wants."""
    read = {each.path[0] for each in (*contract.columns, *contract.inputs) if each.path}
    return frozenset(read | set(contract.auto.omit if contract.auto else ()))


def _column(each: Field, contract: Contract) -> Column:
    from sluice.formats.convert import UnfitError

    required = each.name in (*contract.order, contract.valid_from)
    body: dict[str, Any] = {"name": each.name, "type": str(each.type), "required": required}
    try:
        return Column.model_validate({**body, "doc": each.doc if isinstance(each.doc, str) else None})
    except ValidationError as error:
        (words, *_) = [message for _, message in explain(error, Column, body)]
        raise UnfitError(each.name, f"makes no column: {words}") from error


def _way_out(path: str) -> str:
    name = path.partition(".")[0].rstrip("[]{}")
    omit = f"- auto: {{omit: [{name}]}}" if name.isidentifier() else "- auto: {omit: […]}"
    return (
        "List the field among the columns, before auto: {name: …, type: …, source: …}. Or leave it out: "
        f"{omit}. The table goes on with the columns that it has; one that does not exist yet waits."
    )
