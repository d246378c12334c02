"""What becomes of columns before the network: checked against the columns that are the features."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from .errors import INVALID, MISSING_COLUMN, RefusalError, shown
from .options import PREPROCESS, RULES
from .parameters import check_names, check_object, fits, wanted
from .relation import Column, Table
from .spi import Json


def preprocess(request: Json, before: Json, table: Table, features: Sequence[Column]) -> Json:
    """The options as given, or as before. Each has one value for all columns, or an object with some columns'."""
    given = request.get("preprocess")
    if given is None:
        given = before.get("preprocess", {})
    check_names("preprocess", check_object("preprocess", given, PREPROCESS), PREPROCESS)
    for option, value in given.items():
        if value is None:
            continue
        if not isinstance(value, dict):
            _check_value(option, "", value)
        for column, own in _of_columns(option, value, table, features):
            _check_value(option, f' of column "{column.name}"', own)
            _check_kind(option, column, own)
    return {option: value for option, value in given.items() if value is not None}


def _of_columns(option: str, value: Any, table: Table, features: Sequence[Column]) -> Iterator[tuple[Column, Any]]:
    """Each feature that the option names, with its value."""
    used = {column.name: column for column in features}
    for name, own in value.items() if isinstance(value, dict) else ():
        if name in used:
            yield used[name], own
            continue
        hint = f"Name features only: {', '.join(used)}."
        if all(column.name != name for column in table.columns):
            message = f'preprocess: "{option}" names column "{name}", which {table} does not have'
            raise RefusalError(MISSING_COLUMN, message, hint=f"The table's columns are {table.names}.")
        raise RefusalError(INVALID, f'preprocess: "{option}" names column "{name}", which is no feature', hint=hint)


def _check_value(option: str, of_column: str, value: Any) -> None:
    rule = PREPROCESS[option]
    if rule["type"] == "rule":
        number = isinstance(value, int | float) and not isinstance(value, bool)
        number = number and abs(value) <= sys.float_info.max
        fitting = number or (isinstance(value, str) and value in rule["values"])
        words = f"one of {', '.join(rule['values'])}, or a number"
    else:
        fitting, words = fits(value, rule), wanted(rule)
    if not fitting:
        example = f'{{"{option}": {{"price": {_EXAMPLES[option]}}}}}'
        message = f'preprocess: "{option}"{of_column} is {shown(value)}'
        raise RefusalError(INVALID, message, hint=f"Give {words}, for all columns or by column, such as {example}.")


def _check_kind(option: str, column: Column, value: Any) -> None:
    """Refuse what means nothing to a column of this kind."""
    kinds = PREPROCESS[option]["kinds"]
    if column.kind not in kinds:
        message = f'preprocess: "{option}" means nothing to column "{column.name}" of type {column.type}'
        raise RefusalError(INVALID, message, hint=f"It is for columns of kind {' or '.join(kinds)}: leave it out.")
    if option == "missing" and value not in RULES.get(column.kind, (value,)):
        own = "A missing text is a category of its own." if column.kind == "text" else "A missing moment is its mean."
        message = f'preprocess: "missing" of column "{column.name}" of type {column.type} cannot be {shown(value)}'
        hint = f"Use {' or '.join(RULES[column.kind])}, or leave it out."
        raise RefusalError(INVALID, message, detail=own, hint=hint)


_EXAMPLES = {"standardize": "false", "categories": "50", "missing": '"zero"'}
