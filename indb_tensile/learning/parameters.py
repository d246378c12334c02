"""Checks named parameters against a table of specifications.

The tables are plain dicts, so that the SQL bridge can contain the same tables and refuse an invalid request at once.
"""

import math
import sys
from collections.abc import Mapping
from typing import Any

from indb_tensile.errors import RequestError

# The types are integer, number, boolean, text, choice, integers, numbers and layers. A parameter without `default` is
# required. minimum and maximum are inclusive, above and below are exclusive; `length` limits the length of a list.
Specification = dict[str, Any]


def check_parameters(
    subject: str, arguments: Mapping[str, Any], known: Mapping[str, Specification]
) -> dict[str, Any]:
    """Return every known parameter with its argument or its default; null counts as not given.

    Raises RequestError with the parameter's name for an unknown or missing parameter, a wrong type or a value out of
    range.
    """
    if not isinstance(arguments, Mapping):
        raise RequestError(f"{subject} must be a JSON object, not {_abbreviated(arguments)}")
    for name in arguments:
        if name not in known:
            raise RequestError(
                f'{subject}: unknown parameter "{name}"', hint=f"Known parameters: {', '.join(known) or 'none'}."
            )
    return {
        name: _checked_value(subject, name, arguments.get(name), specification)
        for name, specification in known.items()
    }


def _checked_value(subject: str, name: str, value: Any, specification: Specification) -> Any:
    if value is None:
        if "default" not in specification:
            raise RequestError(f'{subject}: parameter "{name}" is missing', hint=f"Give {wanted(specification)}.")
        return _as_tuple(specification["default"])
    if not fits(value, specification):
        raise RequestError(
            f'{subject}: "{name}" is {_abbreviated(value)}', hint=f'"{name}" must be {wanted(specification)}.'
        )
    return float(value) if specification["type"] == "number" else _as_tuple(value)


def fits(value: Any, specification: Specification) -> bool:
    """Return whether a value conforms to the parameter's specification."""
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
            is_element = _is_integer if kind == "integers" else _is_number
            shortest, longest = specification.get("length", (0, math.inf))
            if not isinstance(value, list | tuple) or not shortest <= len(value) <= longest:
                return False
            return all(is_element(item) and _in_range(item, specification) for item in value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _in_range(value: float, specification: Specification) -> bool:
    inside: bool = specification.get("minimum", -math.inf) <= value <= specification.get("maximum", math.inf)
    between: bool = specification.get("above", -math.inf) < value < specification.get("below", math.inf)
    return inside and between


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value


def wanted(specification: Specification) -> str:
    """Describe in words which values a parameter accepts."""
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
    shortest, longest = specification.get("length", (None, None))
    count = (
        ""
        if shortest is None
        else f" of length {shortest}"
        if shortest == longest
        else f" of length {shortest} to {longest}"
    )
    each = ", each " if count else " "
    return f"{nouns[kind]}{count}" + (each + " and ".join(limits) if limits else "")


def _abbreviated(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) else f'"{value}"'
    return text if len(text) <= 80 else text[:77] + "..."
