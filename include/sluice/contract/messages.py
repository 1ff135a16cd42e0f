"""Says in words what pydantic found: unknown fields with what was meant, values with what would be right."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from sluice.contract.document import Location
from sluice.contract.values import nearest, shown

_KINDS = {
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "tuple_type": "a list",
    "dict_type": "a map (name: value)",
    "model_type": "a map (name: value)",
    "model_attributes_type": "a map (name: value)",
}


def explain(error: ValidationError, model: type[BaseModel], data: object) -> list[tuple[Location, str]]:
    """Turn a validation error into places and sentences.

    Args:
        error: What pydantic raised for `model` and `data`.
        model: The model that was validated.
        data: The plain values it was given; they are quoted in the messages.
    """
    return [(_written(each["loc"]), _sentence(each, model, data)) for each in error.errors(include_url=False)]


def _written(location: Location) -> Location:
    """Where it stands in the file: `auto` is an entry of the columns."""
    return ("columns", *location) if location[:1] == ("auto",) else location


def _sentence(detail: Any, model: type[BaseModel], data: object) -> str:
    kind, location = detail["type"], detail["loc"]
    context = detail.get("ctx", {})
    found = _at(data, location)
    match kind:
        case "missing":
            sentence = "is required"
        case "extra_forbidden":
            fields = _fields(model, location[:-1])
            sentence = f"unknown field{nearest(str(location[-1]), fields) or ' (known: ' + ', '.join(fields) + ')'}"
        case "literal_error":
            sentence = f"{shown(found)} is not {context['expected']}{_meant(found, context['expected'])}"
        case "value_error":
            sentence = str(context["error"])
        case "contract":
            sentence = str(detail["msg"])
        case "too_short" | "string_too_short":
            sentence = "must not be empty"
        case _ if kind in _KINDS:
            quotes = ": put it in quotes" if kind == "string_type" and isinstance(found, (bool, int, float)) else ""
            sentence = f"must be {_KINDS[kind]}, not {shown(found)}{quotes}"
        case _:
            sentence = f"{shown(found)}: {detail['msg']}"
    return sentence


def _meant(found: object, expected: str) -> str:
    choices = [each.strip("'") for each in expected.replace(" or ", ", ").split(", ")]
    return nearest(found, choices) if isinstance(found, str) else ""


def _at(data: object, location: Location) -> object:
    for step in location:
        inside = range(len(data)) if isinstance(data, list) else data
        if isinstance(inside, (dict, range)) and step in inside:
            data = data[step]  # type: ignore[index]
    return data


def _fields(model: type[BaseModel], location: Location) -> list[str]:
    """Return the field names of the model that `location` leads to."""
    for step in location:
        named = [f for name, f in model.model_fields.items() if step in (name, f.validation_alias)]
        model = next(filter(None, (_model_in(f.annotation) for f in named)), model)
    return list(dict.fromkeys(str(f.validation_alias or name) for name, f in model.model_fields.items()))


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each))), None)
