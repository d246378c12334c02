"""Checks the options of preprocessing against the columns that are features."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from .errors import INVALID, MISSING_COLUMN, RefusalError, shown
from .options import PREPROCESS, RULES
from .parameters import check_names, check_object, fits, wanted
from .relation import Column, Table
from .spi import Json


def preprocess(request: Json, before: Json, table: Table, features: Sequence[Column]) -> Json:
    """Return the options of the request, or else those of the last run.

    An option has one value for all columns, or an object with values for some columns.
    """
    options = request.get("preprocess")
    if options is None:
        options = before.get("preprocess", {})
    check_names("preprocess", check_object("preprocess", options, PREPROCESS), PREPROCESS)
    for option, value in options.items():
        if value is None:
            continue
        if not isinstance(value, dict):
            _check_value(option, "", value)
        for column, own in _of_columns(option, value, table, features):
            _check_value(option, f' of column "{column.name}"', own)
            _check_kind(option, column, own)
    return {option: value for option, value in options.items() if value is not None}


def _of_columns(option: str, value: Any, table: Table, features: Sequence[Column]) -> Iterator[tuple[Column, Any]]:
    """Yield each feature that the option names, with its value."""
    used = {column.name: column for column in features}
    for name, own in value.items() if isinstance(value, dict) else ():
        if name in used:
            yield used[name], own
            continue
        hint = f"Name features only: {', '.join(used)}."
        if all(column.name != name for column in table.columns):
            message = f'preprocess: "{option}" names column "{name}", which {table} does not have'
            raise RefusalError(MISSING_COLUMN, message, hint=f"The table's columns are {table.names}.")
        raise RefusalError(
            INVALID, f'preprocess: "{option}" names column "{name}", which is not a feature', hint=hint
        )


def _check_value(option: str, of_column: str, value: Any) -> None:
    """Refuse a value that the option does not accept."""
    rule = PREPROCESS[option]
    if rule["type"] == "rule":
        number = isinstance(value, int | float) and not isinstance(value, bool)
        number = number and abs(value) <= sys.float_info.max
        valid = number or (isinstance(value, str) and value in rule["values"])
        allowed = f"one of {', '.join(rule['values'])}, or a number"
    else:
        valid, allowed = fits(value, rule), wanted(rule)
    if not valid:
        example = f'{{"{option}": {{"price": {_EXAMPLES[option]}}}}}'
        message = f'preprocess: "{option}"{of_column} is {shown(value)}'
        raise RefusalError(INVALID, message, hint=f"Give {allowed}, for all columns or by column, such as {example}.")


def _check_kind(option: str, column: Column, value: Any) -> None:
    """Refuse an option that has no meaning for a column of this kind."""
    kinds = PREPROCESS[option]["kinds"]
    if column.kind not in kinds:
        message = f'preprocess: "{option}" means nothing to column "{column.name}" of type {column.type}'
        raise RefusalError(INVALID, message, hint=f"It is for columns of kind {' or '.join(kinds)}: leave it out.")
    if option == "missing" and value not in RULES.get(column.kind, (value,)):
        own = (
            "A missing text is a category of its own."
            if column.kind == "text"
            else "A missing date or timestamp becomes the mean."
        )
        message = f'preprocess: "missing" of column "{column.name}" of type {column.type} cannot be {shown(value)}'
        hint = f"Use {' or '.join(RULES[column.kind])}, or leave it out."
        raise RefusalError(INVALID, message, detail=own, hint=hint)


_EXAMPLES = {"standardize": "false", "categories": "50", "missing": '"zero"'}
