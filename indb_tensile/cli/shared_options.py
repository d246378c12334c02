"""Options and argument types that several commands share."""

import json
from collections.abc import Callable
from typing import Any

import click

from indb_tensile.errors import RequestError
from indb_tensile.units import parse_bytes

_MOST = 2**62  # bytes: below the planner's machine integers, so that sums of sizes do not overflow

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

dsn_option: Decorator = click.option("--dsn", metavar="DSN", help="libpq connection string or URI of the database")
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="print JSON, one object a line")


def parse_json(subject: str, text: str, example: str) -> Any:
    """Parse JSON in an argument. Raises RequestError with the position of the fault, and an example in the hint."""
    try:
        return json.loads(text)
    except ValueError as error:
        fault = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        position = f" at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
        raise RequestError(
            f"{subject} is not JSON: {fault}{position}: {text}", hint=f"write it as {example}"
        ) from error


def size_option(*names: str, help: str) -> Decorator:  # noqa: A002 - click's word
    """Return an option whose value is a size with PostgreSQL's units. The command gets the size in bytes."""
    return click.option(*names, callback=_size, metavar="SIZE", help=help)


def size_text_option(*names: str, help: str) -> Decorator:  # noqa: A002 - click's word
    """Return an option whose value is a size with PostgreSQL's units.

    The command gets a plain number as a number of bytes, and a number with a unit as the text that the user wrote.
    """
    return click.option(*names, callback=_size_text, metavar="SIZE", help=help)


def _size_text(context: click.Context, parameter: click.Parameter, text: str | None) -> int | str | None:
    size_bytes = _size(context, parameter, text)
    return size_bytes if text is None or text.strip().isdecimal() else text.strip()


def _size(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    try:
        size_bytes = None if text is None else parse_bytes(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a size, such as 512MB or 2GB") from None
    if size_bytes is not None and size_bytes >= _MOST:
        raise click.BadParameter(f"{text!r} is too large: a size is below 2^62 bytes, such as 512MB or 2GB")
    return size_bytes
