"""Drafts how a topic's keys are read, and which columns they make."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sluice.contract.types import IcebergType
from sluice.contract.values import KEY_SOURCE, quote_name
from sluice.draft.connect_types import connect_fields, connect_type
from sluice.draft.forms import Form
from sluice.draft.json_types import infer_type
from sluice.draft.model import DraftColumn, KeyDraft
from sluice.draft.observe import Field
from sluice.draft.registry_columns import root_fields, scalar_type
from sluice.draft.values import is_scalar
from sluice.formats.logical_types import unit_of

_LONG = re.compile(rb"0|-?[1-9][0-9]{0,18}")


def draft_key(form: Form, keys: Sequence[bytes | None]) -> KeyDraft:
    """Return the draft for keys of a form.

    Args:
        form: What the keys are.
        keys: All of them; None for records without a key.
    """
    if form.format is None:
        return KeyDraft()
    missing = sum(each is None for each in keys)
    complete = not missing
    evidence = f"keys: {form.evidence}" + (f"; {missing} of {len(keys)} records have none" if missing else "")
    if form.schema:
        return KeyDraft(form.format, _schema_fields(form), evidence, complete, missing * 10 <= len(keys))
    if form.format in ("json", "json_connect"):
        fields, always = _json_fields(form)
        read = len(form.documents)
        steady = always and read + missing == len(keys) and missing * 10 <= len(keys)
        return KeyDraft(form.format, fields, evidence, complete and always and read == len(keys), steady)
    kind = {"bytes": "binary", "long": "long", "int": "int"}.get(form.format, "string")
    hint = _whole_numbers_hint([each for each in keys if each is not None]) if kind == "string" else ()
    whole = DraftColumn("", kind, KEY_SOURCE, evidence=("the record's key", *hint), always=complete)
    readable = form.format != "string" or all(each is None or _decodes(each) for each in keys)
    return KeyDraft(form.format, (whole,), evidence, complete and readable)


def _whole_numbers_hint(keys: Sequence[bytes]) -> tuple[str, ...]:
    """Evidence that texts are numbers; none if two texts would be one number, such as 7 and 07."""
    if not keys or not all(_LONG.fullmatch(each) and -(2**63) <= int(each) < 2**63 for each in keys):
        return ()
    return (f"text; all {len(keys)} keys of the sample are whole numbers, so type: long would read them too",)


def _decodes(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _schema_fields(form: Form) -> tuple[DraftColumn, ...]:
    assert form.schema  # noqa: S101 - tells mypy what the caller has checked
    whole = scalar_type(form.schema)
    if whole is not None:
        evidence = ("the record's key",)
        return (DraftColumn("", str(whole), KEY_SOURCE, unit=unit_of(whole), evidence=evidence, always=True),)
    return tuple(_field(name, kind, True) for name, kind in root_fields(form.schema).items() if is_scalar(kind))


def _field(name: str, kind: IcebergType, always: bool) -> DraftColumn:
    source, evidence = f"{KEY_SOURCE}.{quote_name(name)}", ("a field of the record's key",)
    return DraftColumn(name, str(kind), source, unit=unit_of(kind), evidence=evidence, always=always)


def _json_fields(form: Form) -> tuple[tuple[DraftColumn, ...], bool]:
    """The key's fields, and whether each is in all keys."""
    seen = Field()
    for each in form.documents:
        seen.add(each)
    if not seen.fields:
        kind, _ = infer_type(seen)
        whole = DraftColumn("", str(kind), KEY_SOURCE, evidence=("the record's key",), always=True)
        return (whole,) * is_scalar(kind), not seen.kinds["null"]
    schemas: dict[str, Any] = dict(connect_fields(form.embedded))
    found = []
    for name, each in seen.fields.items():
        kind = connect_type(schemas[name]) if name in schemas else infer_type(each, name)[0]
        if name and name.isprintable() and name == name.strip() and is_scalar(kind):
            found.append(_field(name, kind, each.values == len(form.documents)))
    return tuple(found), bool(found) and len(found) == len(seen.fields) and all(each.always for each in found)
