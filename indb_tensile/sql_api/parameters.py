"""Checks named parameters against a table that says of each what it takes."""

import math
import sys
from collections.abc import Mapping
from typing import Any

from .errors import INVALID, RefusalError, shown
from .spi import Json


def check_parameters(subject: str, given: Any, known: Mapping[str, Json]) -> Json:
    """What was given, nulls left out, once names, types and ranges are right."""
    check_names(subject, check_object(subject, given, known), known)
    for name, value in given.items():
        if value is not None and not fits(value, known[name]):
            hint = f'"{name}" must be {wanted(known[name])}.'
            raise RefusalError(INVALID, f'{subject}: "{name}" is {shown(value)}', hint=hint)
    for name, rule in known.items():
        if "default" not in rule and given.get(name) is None:
            raise RefusalError(INVALID, f'{subject}: parameter "{name}" is missing', hint=f"Give {wanted(rule)}.")
    return {name: value for name, value in given.items() if value is not None}


def check_object(subject: str, given: Any, known: Any) -> Json:
    """What was given, unless it is no JSON object."""
    if not isinstance(given, dict):
        hint = f"Known parameters of such an object: {', '.join(known)}."
        raise RefusalError(INVALID, f"{subject} must be a JSON object, not {shown(given)}", hint=hint)
    return given


def check_names(subject: str, given: Json, known: Any) -> None:
    """Refuse a name that is not among the known ones."""
    for name in given:
        if name not in known:
            hint = f"Known parameters: {', '.join(known) or 'none'}."
            raise RefusalError(INVALID, f'{subject}: unknown parameter "{name}"', hint=hint)


def fits(value: Any, rule: Json) -> bool:
    """Whether a value is what the parameter takes."""
    kind = rule["type"]
    if kind == "choice":
        return isinstance(value, str) and value in rule["values"]
    if kind == "layers":
        return isinstance(value, list) and all(isinstance(item, dict) for item in value)
    if kind in ("integers", "numbers"):
        few, many = rule.get("length", (0, math.inf))
        single = rule | {"type": kind[:-1]}
        return isinstance(value, list) and few <= len(value) <= many and all(fits(item, single) for item in value)
    if isinstance(value, bool) or kind in ("boolean", "text"):
        return isinstance(value, {"boolean": bool, "text": str}.get(kind, ()))
    if not isinstance(value, int if kind == "integer" else (int, float)) or not abs(value) <= sys.float_info.max:
        return False  # nor is an integer a number that no float can hold, and JSON has such
    least, most = rule.get("minimum", -math.inf), rule.get("maximum", math.inf)
    return bool(least <= value <= most and rule.get("above", -math.inf) < value < rule.get("below", math.inf))


def wanted(rule: Json) -> str:
    """What a parameter takes, in words."""
    if rule["type"] == "choice":
        return "one of " + ", ".join(rule["values"])
    words = (("minimum", "at least"), ("above", "above"), ("maximum", "at most"), ("below", "below"))
    limits = [f"{word} {rule[key]}" for key, word in words if key in rule]
    few, many = rule.get("length", (None, None))
    count = "" if few is None else f" of length {few}" if few == many else f" of length {few} to {many}"
    return f"{_NOUNS[rule['type']]}{count}" + (" " + " and ".join(limits) if limits else "")


_NOUNS = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "text": "a text",
    "integers": "a list of integers",
    "numbers": "a list of numbers",
    "layers": "a list of JSON objects",
}
