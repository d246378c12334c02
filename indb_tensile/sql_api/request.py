"""The arguments of any request, read from its JSON: a wrong type is refused by the argument's name."""

from collections.abc import Sequence
from typing import Any

from .errors import INVALID, RefusalError, shown
from .spi import Json


def read_model_name(request: Json) -> str:
    """The model's name, which must be given."""
    name = read_text(request, "model")
    if name is None or not 1 <= len(name) <= 200:
        raise RefusalError(INVALID, f"the model's name is {shown(name)}", hint="Give a name of 1 to 200 characters.")
    return name


def read_text(request: Json, key: str) -> str | None:
    """A text, or None where it is left out."""
    value = request.get(key)
    if value is not None and not isinstance(value, str):
        raise RefusalError(INVALID, f"{key} is {shown(value)}, not a text")
    return value


def read_integer(request: Json, key: str) -> int | None:
    """An integer, or None where it is left out."""
    value = request.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise RefusalError(INVALID, f"{key} is {shown(value)}, not an integer")
    return value


def read_names(request: Json, key: str) -> list[str] | None:
    """A list of column names, each once, or None where it is left out."""
    value = request.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise RefusalError(INVALID, f"{key} is {shown(value)}, not a list of column names")
    return list(dict.fromkeys(value))


def read_choice(request: Json, key: str, known: Sequence[str], default: Any) -> Any:
    """One of the known words, or the default where it is left out."""
    value = read_text(request, key)
    if value is None:
        return default
    if value not in known:
        raise RefusalError(INVALID, f'unknown {key} "{value}"', hint=f"Known: {', '.join(known)}.")
    return value
