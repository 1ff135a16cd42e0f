"""pydantic's validation errors as messages for the contract's author, with suggestions."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from sluice.contract.document import Location
from sluice.contract.suggestions import did_you_mean, known_elsewhere
from sluice.contract.values import quote

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


def describe_errors(error: ValidationError, model: type[BaseModel], data: object) -> list[tuple[Location, str]]:
    """Return the location and message of each error.

    Args:
        error: pydantic's error for `model` and `data`.
        model: The model that was validated.
        data: The plain values that were validated; messages quote them.
    """
    return [(_location_in_file(each["loc"]), _message(each, model, data)) for each in error.errors(include_url=False)]


def _location_in_file(location: Location) -> Location:
    """`auto` is an entry of `columns` in the file."""
    return ("columns", *location) if location[:1] == ("auto",) else location


def _message(detail: Any, model: type[BaseModel], data: object) -> str:
    kind, location = detail["type"], detail["loc"]
    context = detail.get("ctx", {})
    found = _at(data, location)
    match kind:
        case "missing":
            message = "is required"
        case "extra_forbidden":
            fields = _fields(model, location[:-1])
            message = f"unknown field{_meant(str(location[-1]), fields)}"
        case "literal_error":
            message = f"{quote(found)} is not {context['expected']}{_suggest(found, context['expected'])}"
        case "value_error":
            message = str(context["error"])
        case "contract":
            message = str(detail["msg"])
        case "too_short" | "string_too_short":
            message = "must not be empty"
        case _ if kind in _KINDS:
            quotes = ": put it in quotes" if kind == "string_type" and isinstance(found, (bool, int, float)) else ""
            message = f"must be {_KINDS[kind]}, not {quote(found)}{quotes}"
        case _:
            message = f"{quote(found)}: {detail['msg']}"
    return message


def _meant(word: str, fields: list[str]) -> str:
    if field := known_elsewhere(word, fields):
        return f" (did you mean {field!r}?)"
    return did_you_mean(word.replace("-", "_"), fields) or f" (known: {', '.join(fields)})"


def _suggest(found: object, expected: str) -> str:
    choices = [each.strip("'") for each in expected.replace(" or ", ", ").split(", ")]
    return did_you_mean(found, choices) if isinstance(found, str) else ""


def _at(data: object, location: Location) -> object:
    for step in location:
        inside = range(len(data)) if isinstance(data, list) else data
        if isinstance(inside, (dict, range)) and step in inside:
            data = data[step]  # type: ignore[index]
    return data


def _fields(model: type[BaseModel], location: Location) -> list[str]:
    """Return the field names of the model at `location`."""
    for step in location:
        named = [f for name, f in model.model_fields.items() if step in (name, f.validation_alias)]
        model = next(filter(None, (_model_in(f.annotation) for f in named)), model)
    return list(dict.fromkeys(str(f.validation_alias or name) for name, f in model.model_fields.items()))


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each))), None)
