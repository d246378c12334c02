"""Checks named parameters against a table of rules.

A rule is a dictionary with these keys:

- `type`: integer, number, boolean, text, choice (a word of `values`), integers, numbers, texts (lists), layers (a
  list of JSON objects, one for each layer), weights (a word of `values`, or an object with a number for each class),
  or object (a JSON object with parameters of its own).
- `default`: the value of a parameter that is not given. Without it the parameter is required. None means that a
  worker computes the value.
- `values`: the words that a choice or weights accept.
- `minimum` and `maximum` (inclusive), `above` and `below` (exclusive): limits of a number, of each item of a list,
  and of each number of weights. Rules of the type weights must have `minimum` and
  `maximum`.
- `length`: the shortest and the longest length of a list.
- `rules`: the rules of an object's own parameters.
- `source`: for a required parameter, where its value comes from, as a sentence. The error of a missing one says it.

The module imports nothing outside `errors` and `request`, because it also runs in the PostgreSQL server (sql_api/).
"""

import math
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..errors import RequestError
from .abbreviation import shown
from .near_names import did_you_mean

Json = dict[str, Any]
Rule = dict[str, Any]


def check_parameters(subject: str, arguments: Any, rules: Mapping[str, Rule]) -> Json:
    """Check the arguments against the rules, and return them without nulls.

    Raises RequestError for an unknown or missing name, a wrong type and a value out of range.
    """
    check_names(subject, check_object(subject, arguments, rules), rules)
    for name, value in arguments.items():
        if value is not None and not fits(value, rules[name]):
            near = did_you_mean(value, rules[name]["values"]) if rules[name]["type"] == "choice" else ""
            hint = f'{near}"{name}" must be {describe_rule(rules[name])}.'
            if isinstance(value, dict) and rules[name]["type"] not in ("object", "weights"):
                hint += _VARYING
            raise RequestError(f'{subject}: "{name}" is {shown(value)}', hint=hint)
    for name, rule in rules.items():
        if "default" not in rule and arguments.get(name) is None:
            hint = f"Give {describe_rule(rule)}.{' ' * ('source' in rule)}{rule.get('source', '')}"
            raise RequestError(f'{subject}: parameter "{name}" is missing', hint=hint)
    return {name: value for name, value in arguments.items() if value is not None}


_VARYING = (
    ' An object is for a value that varies in tensile_search: {"range": [0.001, 0.1], "log": true} '
    'or {"choices": [64, 256]}.'
)


def fill_defaults(arguments: Mapping[str, Any], rules: Mapping[str, Rule]) -> Json:
    """Return every parameter of the rules with its argument or its default. The arguments must have been checked.

    A number becomes a float, a list becomes a tuple, and the items of a list of numbers become floats. Weights and
    objects stay as they are.
    """
    values = {name: arguments.get(name) for name in rules}
    return {
        name: _converted(rule["default"] if values[name] is None else values[name], rule["type"])
        for name, rule in rules.items()
    }


def check_object(subject: str, value: Any, names: Iterable[str]) -> Json:
    """Return the value. Raises RequestError, which lists these names, for a value that is not a JSON object."""
    if not isinstance(value, dict):
        hint = f"Known parameters of such an object: {', '.join(names)}."
        raise RequestError(f"{subject} must be a JSON object, not {shown(value)}", hint=hint)
    return value


def check_names(subject: str, arguments: Json, names: Collection[str]) -> None:
    """Raise RequestError for an argument whose name is not one of these."""
    for name in arguments:
        if name not in names:
            hint = f"{did_you_mean(name, names)}Known parameters: {', '.join(names) or 'none'}."
            raise RequestError(f"{subject}: unknown parameter {shown(name)}", hint=hint)


def fits(value: Any, rule: Rule) -> bool:
    """Return whether a value conforms to the parameter's rule."""
    kind = rule["type"]
    if kind == "choice":
        return isinstance(value, str) and value in rule["values"]
    if kind == "object":
        return isinstance(value, dict)  # the caller checks the object's own parameters
    if kind == "layers":
        return isinstance(value, list | tuple) and all(isinstance(item, dict) for item in value)
    if kind == "weights":
        number = rule | {"type": "number"}
        return (isinstance(value, str) and value in rule["values"]) or (
            isinstance(value, dict) and bool(value) and all(fits(weight, number) for weight in value.values())
        )
    if kind in ("integers", "numbers", "texts"):
        shortest, longest = rule.get("length", (0, math.inf))
        single = rule | {"type": kind[:-1]}  # "integers" holds items of type "integer"
        return (
            isinstance(value, list | tuple)
            and shortest <= len(value) <= longest
            and all(fits(item, single) for item in value)
        )
    # A bool of Python is also an int, and must not pass as a number.
    if isinstance(value, bool) or kind in ("boolean", "text"):
        return isinstance(value, {"boolean": bool, "text": str}.get(kind, ()))
    if not isinstance(value, int if kind == "integer" else (int, float)) or not abs(value) <= sys.float_info.max:
        return False  # also refuses NaN, and integers beyond the range of a double, which JSON allows
    least, most = rule.get("minimum", -math.inf), rule.get("maximum", math.inf)
    return bool(least <= value <= most and rule.get("above", -math.inf) < value < rule.get("below", math.inf))


def describe_rule(rule: Rule) -> str:
    """Describe in words which values a parameter accepts."""
    if rule["type"] == "choice":
        return "one of " + ", ".join(rule["values"])
    if rule["type"] == "object":
        return f"an object with the parameters {', '.join(rule['rules'])}"
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
    each = f"{',' if count else ''} each " if rule["type"] in ("integers", "numbers", "texts") else " "
    return f"{_NOUNS[rule['type']]}{count}" + (each + " and ".join(limits) if limits else "")


def _converted(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "number":
        return float(value)
    if kind == "numbers":
        return tuple(float(item) for item in value)
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
