"""Checks named parameters against a table of rules.

A rule is a dictionary. Its `type` is integer, number, boolean, text, choice, integers, numbers, texts, layers,
weights (a word of `values`, or numbers by name) or object (whose own parameters have the `rules`). `minimum` and
`maximum` are inclusive, `above` and `below` are exclusive, and `length` limits the length of a list. A parameter
without `default` is required. If the default is None, a worker computes the value.
"""

import math
import sys
from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from .abbreviation import shown
from .near_names import did_you_mean

Json = dict[str, Any]
Rule = dict[str, Any]


def check_parameters(subject: str, arguments: Any, known: Mapping[str, Rule]) -> Json:
    """Return the arguments without nulls.

    Raises RequestError for an unknown or missing name, a wrong type and a value out of range.
    """
    check_names(subject, check_object(subject, arguments, known), known)
    for name, value in arguments.items():
        if value is not None and not fits(value, known[name]):
            near = did_you_mean(value, known[name]["values"]) if known[name]["type"] == "choice" else ""
            hint = f'{near}"{name}" must be {wanted(known[name])}.'
            raise RequestError(f'{subject}: "{name}" is {shown(value)}', hint=hint)
    for name, rule in known.items():
        if "default" not in rule and arguments.get(name) is None:
            raise RequestError(f'{subject}: parameter "{name}" is missing', hint=f"Give {wanted(rule)}.")
    return {name: value for name, value in arguments.items() if value is not None}


def fill_defaults(arguments: Mapping[str, Any], known: Mapping[str, Rule]) -> Json:
    """Return every known parameter with its argument or its default. The arguments must have been checked.

    Numbers become floats and lists become tuples.
    """
    values = {name: arguments.get(name) for name in known}
    return {
        name: _converted(rule["default"] if values[name] is None else values[name], rule["type"])
        for name, rule in known.items()
    }


def check_object(subject: str, value: Any, known: Any) -> Json:
    """Return the value. Raises RequestError for a value that is not a JSON object."""
    if not isinstance(value, dict):
        hint = f"Known parameters of such an object: {', '.join(known)}."
        raise RequestError(f"{subject} must be a JSON object, not {shown(value)}", hint=hint)
    return value


def check_names(subject: str, arguments: Json, known: Any) -> None:
    """Raise RequestError for a name that is not known."""
    for name in arguments:
        if name not in known:
            hint = f"{did_you_mean(name, known)}Known parameters: {', '.join(known) or 'none'}."
            raise RequestError(f"{subject}: unknown parameter {shown(name)}", hint=hint)


def fits(value: Any, rule: Rule) -> bool:
    """Return whether a value conforms to the parameter's rule."""
    kind = rule["type"]
    if kind == "choice":
        return isinstance(value, str) and value in rule["values"]
    if kind == "object":
        return isinstance(value, dict)  # the owner of the rule checks its parameters
    if kind == "layers":
        return isinstance(value, list | tuple) and all(isinstance(item, dict) for item in value)
    if kind == "weights":
        number = rule | {"type": "number"}
        return (isinstance(value, str) and value in rule["values"]) or (
            isinstance(value, dict) and bool(value) and all(fits(own, number) for own in value.values())
        )
    if kind in ("integers", "numbers", "texts"):
        shortest, longest = rule.get("length", (0, math.inf))
        single = rule | {"type": kind[:-1]}
        return (
            isinstance(value, list | tuple)
            and shortest <= len(value) <= longest
            and all(fits(item, single) for item in value)
        )
    if isinstance(value, bool) or kind in ("boolean", "text"):
        return isinstance(value, {"boolean": bool, "text": str}.get(kind, ()))
    if not isinstance(value, int if kind == "integer" else (int, float)) or not abs(value) <= sys.float_info.max:
        return False  # also refuses integers beyond double precision, which JSON allows
    least, most = rule.get("minimum", -math.inf), rule.get("maximum", math.inf)
    return bool(least <= value <= most and rule.get("above", -math.inf) < value < rule.get("below", math.inf))


def wanted(rule: Rule) -> str:
    """Describe in words which values a parameter accepts."""
    if rule["type"] == "choice":
        return "one of " + ", ".join(rule["values"])
    if rule["type"] == "object":
        return f"an object of {', '.join(rule['rules'])}"
    if rule["type"] == "weights":
        numbers = f"a number at least {rule['minimum']} and at most {rule['maximum']}"
        return f"{' or '.join(rule['values'])}, or an object with {numbers} by class"
    words = (("minimum", "at least"), ("above", "above"), ("maximum", "at most"), ("below", "below"))
    limits = [f"{word} {rule[key]}" for key, word in words if key in rule]
    shortest, longest = rule.get("length", (None, None))
    count = (
        ""
        if shortest is None
        else f" of length {shortest}"
        if shortest == longest
        else f" of length {shortest} to {longest}"
    )
    each = ", each " if count else " "
    return f"{_NOUNS[rule['type']]}{count}" + (each + " and ".join(limits) if limits else "")


def _converted(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "number":
        return float(value)
    return tuple(value) if isinstance(value, list) else value


_NOUNS = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "text": "a text",
    "integers": "a list of integers",
    "numbers": "a list of numbers",
    "texts": "a list of texts",
    "layers": "a list of JSON objects",
}
