"""Named parameters described as data: one table says what may be given, one function checks it.

The tables are plain dicts, so that the SQL bridge can carry the same text and refuse a wrong request at once.
"""

import math
import sys
from collections.abc import Mapping
from typing import Any

from indb_tensile.errors import RequestError

# type: integer, number, boolean, text, choice, integers, numbers, layers; `default` missing means required.
# minimum and maximum are inclusive, above and below are exclusive; `length` bounds a list.
Specification = dict[str, Any]


def check_parameters(subject: str, given: Mapping[str, Any], known: Mapping[str, Specification]) -> dict[str, Any]:
    """Every known parameter with the given value, else its default; null counts as not given.

    Raises RequestError, naming the parameter, for an unknown name, a missing one, a wrong type or range.
    """
    if not isinstance(given, Mapping):
        raise RequestError(f"{subject} must be a JSON object, not {_shown(given)}")
    for name in given:
        if name not in known:
            raise RequestError(
                f'{subject}: unknown parameter "{name}"', hint=f"Known parameters: {', '.join(known) or 'none'}."
            )
    return {name: _value(subject, name, given.get(name), specification) for name, specification in known.items()}


def _value(subject: str, name: str, value: Any, specification: Specification) -> Any:
    if value is None:
        if "default" not in specification:
            raise RequestError(f'{subject}: parameter "{name}" is missing', hint=f"Give {wanted(specification)}.")
        return _frozen(specification["default"])
    if not fits(value, specification):
        raise RequestError(
            f'{subject}: "{name}" is {_shown(value)}', hint=f'"{name}" must be {wanted(specification)}.'
        )
    return float(value) if specification["type"] == "number" else _frozen(value)


def fits(value: Any, specification: Specification) -> bool:
    """Whether a value is what the parameter takes."""
    match specification["type"]:
        case "integer":
            return _is_integer(value) and _in_range(value, specification)
        case "number":
            return _is_number(value) and _in_range(value, specification)
        case "boolean":
            return isinstance(value, bool)
        case "text":
            return isinstance(value, str)
        case "choice":
            return isinstance(value, str) and value in specification["values"]
        case "layers":
            return isinstance(value, list | tuple) and all(isinstance(item, Mapping) for item in value)
        case kind:
            is_one = _is_integer if kind == "integers" else _is_number
            few, many = specification.get("length", (0, math.inf))
            if not isinstance(value, list | tuple) or not few <= len(value) <= many:
                return False
            return all(is_one(item) and _in_range(item, specification) for item in value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _in_range(value: float, specification: Specification) -> bool:
    inside: bool = specification.get("minimum", -math.inf) <= value <= specification.get("maximum", math.inf)
    between: bool = specification.get("above", -math.inf) < value < specification.get("below", math.inf)
    return inside and between


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value


def wanted(specification: Specification) -> str:
    """What a parameter takes, in words."""
    kind = specification["type"]
    if kind == "choice":
        return "one of " + ", ".join(specification["values"])
    nouns = {
        "integer": "an integer",
        "number": "a number",
        "boolean": "true or false",
        "text": "a text",
        "integers": "a list of integers",
        "numbers": "a list of numbers",
        "layers": "a list of JSON objects",
    }
    words = (("minimum", "at least"), ("above", "above"), ("maximum", "at most"), ("below", "below"))
    limits = [f"{word} {specification[key]}" for key, word in words if key in specification]
    few, many = specification.get("length", (None, None))
    count = "" if few is None else f" of length {few}" if few == many else f" of length {few} to {many}"
    return f"{nouns[kind]}{count}" + (" " + " and ".join(limits) if limits else "")


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) else f'"{value}"'
    return text if len(text) <= 80 else text[:77] + "..."
