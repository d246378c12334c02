"""Reads the arguments of a request from its JSON, and refuses arguments of a wrong type by name."""

import json
import re
from collections.abc import Sequence
from typing import Any

from ..errors import RequestError
from .abbreviation import shown
from .near_names import did_you_mean
from .parameter_rules import Json


def read_model_name(request: Json) -> str:
    """Return the model's name, which is required."""
    name = read_text(request, "model")
    if name is None or not 1 <= len(name) <= _LONGEST_NAME:
        hint = f"Give a name of 1 to {_LONGEST_NAME} characters."
        raise RequestError(f"the model's name is {shown(name)}", hint=hint)
    _check_printable("the model's name", name)
    return name


def read_key(request: Json) -> str | None:
    """Return the idempotency key, or None if it is left out.

    Two requests with the same key are one job.
    """
    key = read_text(request, "idempotency_key")
    if key is None:
        return None
    if not 1 <= len(key) <= _LONGEST_NAME:
        message = f"idempotency_key has {len(key)} characters"
        raise RequestError(message, hint=f"Give a key of 1 to {_LONGEST_NAME} characters, such as a UUID.")
    _check_printable("idempotency_key", key)
    return key


def read_text(request: Json, key: str) -> str | None:
    """Return a text, or None if it is left out."""
    value = request.get(key)
    if value is not None and not isinstance(value, str):
        raise RequestError(f"{key} is {shown(value)}, not a text")
    return value


def read_integer(request: Json, key: str) -> int | None:
    """Return an integer, or None if it is left out."""
    value = request.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise RequestError(f"{key} is {shown(value)}, not an integer")
    return value


def read_names(request: Json, key: str) -> list[str] | None:
    """Return a list of distinct column names, or None if it is left out."""
    value = request.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        hint = f"Name columns, such as {key} => array['a', 'b'], or leave it out."
        raise RequestError(f"{key} is {shown(value)}, not a list of column names", hint=hint)
    return list(dict.fromkeys(value))


def read_choice(request: Json, key: str, known: Sequence[str], default: Any) -> Any:
    """Return one of the known words, or the default if it is left out."""
    value = read_text(request, key)
    if value is None:
        return default
    if value not in known:
        hint = f"{did_you_mean(value, known)}Known: {', '.join(known)}."
        raise RequestError(f"unknown {key} {shown(value)}", hint=hint)
    return value


def _check_printable(subject: str, name: str) -> None:
    """Refuse characters that could forge a line in a log or a terminal.

    Names of models and keys appear in both.
    """
    if _UNPRINTABLE.search(name):
        message = (
            f"{subject} {json.dumps(name)} has a control character, a line separator or a mark of text direction"
        )
        raise RequestError(message, hint="Use letters, digits, spaces and punctuation.")


_LONGEST_NAME = 200
# Equal to the constraints of tensile.models and tensile.jobs.
_UNPRINTABLE = re.compile(r"[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]")
