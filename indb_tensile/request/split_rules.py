"""The options of a split, and the columns that may decide which rows train, validate and test."""

import json
from collections.abc import Sequence
from typing import Any

from ..errors import RequestError
from .parameter_rules import Json, Rule, check_parameters

SPLIT: dict[str, Rule] = {
    "test_size": {"type": "number", "above": 0, "below": 1, "default": 0.15},
    "valid_size": {"type": "number", "minimum": 0, "below": 1, "default": 0.15},
    "seed": {"type": "integer", "minimum": 0, "maximum": 2147483647, "default": 0},
    "last": {"type": "number", "above": 0, "below": 1, "default": None},
    "by": {"type": "text", "default": None},
    "column": {"type": "text", "default": None},
    "group": {"type": "text", "default": None},
    "stratify": {"type": "text", "default": None},
    "key": {"type": "texts", "length": (1, 32), "default": None},
    "valid": {"type": "text", "default": None},
    "test": {"type": "text", "default": None},
}
PARTS = ("train", "valid", "test")
TABLE_OPTIONS = ("valid", "test")  # the options that name the table of a part, in the order in which they are read
# The kinds of columns that an option may name.
SPLIT_COLUMN_KINDS = {
    "by": ("date", "time", "integer", "float"),
    "column": ("boolean", "text"),
    "group": ("integer", "text", "date"),
    "stratify": ("integer", "text", "boolean"),
}
SPLIT_COLUMN_HINTS = {
    "by": "Name a date, timestamp or numeric column, by which the rows are in order.",
    "column": "Name a boolean column, true for rows that test, or a text column of 'train', 'valid' and 'test'.",
    "group": "Name an integer, text or date column: rows of one value are all in one part.",
    "stratify": "Name an integer, text or boolean column, such as the target: each part has the same shares of its "
    "values.",
}
_CONTRADICTIONS = (
    *(("column", "last"), ("column", "by"), ("last", "test_size"), ("column", "test_size")),
    *(("group", other) for other in ("last", "by", "column", "stratify")),
    *(("stratify", other) for other in ("last", "by", "column")),
    *((part, f"{part}_size") for part in TABLE_OPTIONS),
    *((part, other) for part in TABLE_OPTIONS for other in ("last", "by", "column", "group", "stratify")),
)

_WITHOUT_STRATIFY = (
    "last",
    "by",
    "column",
    "group",
    *TABLE_OPTIONS,
)  # options that `stratify` cannot be combined with


def check_split(split: Any) -> Json:
    """Return the options without nulls.

    Raises RequestError for an invalid option, for options that contradict each other, and for shares that leave no
    rows to train on. `last` may be given without `by`, which `require_order` checks.
    """
    _refuse_shares(split)
    options = check_parameters("split", split, SPLIT)
    for name, other in _CONTRADICTIONS:
        if name in options and other in options:
            message = f'split: "{name}" and "{other}" contradict each other'
            raise RequestError(message, hint="Leave one of them out.")
    if "by" in options and "last" not in options:
        hint = f'Give the share of the rows that test, as in {{"last": 0.2, "by": {json.dumps(options["by"])}}}.'
        raise RequestError('split: "by" is given without "last"', hint=hint)
    for part in TABLE_OPTIONS:
        if options.get(part) == "":
            raise RequestError(f'split: "{part}" is an empty text', hint="Give the name of the table of that part.")
    if len(set(options.get("key", ()))) < len(options.get("key", ())):
        raise RequestError('split: "key" names a column twice', hint="Name each column of the key once.")
    shares = {name: rule["default"] for name, rule in SPLIT.items()} | options
    shares |= {f"{part}_size": 0 for part in TABLE_OPTIONS if part in options}
    size = "last" if "last" in options else "test_size"
    if "column" not in options and shares[size] + shares["valid_size"] >= 1:
        message = f"split: {size} {shares[size]} and valid_size {shares['valid_size']} leave no rows to train on"
        raise RequestError(message, hint="Keep their sum below 1.")
    return options


def _refuse_shares(split: Any) -> None:
    """Raise RequestError if the option that names the table of a part is a number, which is meant as a share."""
    for part in TABLE_OPTIONS:
        share = split.get(part) if isinstance(split, dict) else None
        if isinstance(share, int | float) and not isinstance(share, bool):
            example = json.dumps({f"{part}_size": share if 0 < share < 1 else 0.2})
            hint = (
                f'"{part}" must be the name of a table with the rows of that part. '
                f"To give a share of the rows: split => '{example}'."
            )
            raise RequestError(f'split: "{part}" is {share}', hint=hint)


def require_order(split: Json, time_columns: Sequence[str] = (), detail: str = "") -> None:
    """Raise RequestError if `last` is given without `by`.

    `time_columns` are the dates and timestamps of the table, of which the HINT names the first.
    """
    if "last" not in split or "by" in split:
        return
    example = {"last": split["last"], "by": time_columns[0] if time_columns else "..."}
    raise RequestError(
        'split: "last" is given without "by", the column that orders the rows',
        detail=detail,
        hint=f"Name one: split => '{json.dumps(example, ensure_ascii=False)}'.",
    )


def deciding_option(split: Json) -> str | None:
    """Return the option that names a column by which the rows are divided, or None if a hash of the row decides."""
    return next((option for option in SPLIT_COLUMN_KINDS if split.get(option) is not None), None)


def deciding_column(split: Json) -> str | None:
    """Return the column by which the rows are divided, or None if a hash of the row decides."""
    option = deciding_option(split)
    return None if option is None else split[option]


def withheld_column(split: Json) -> str | None:
    """Return the column that is no feature unless the request names it, as the rows are divided by it."""
    return None if deciding_option(split) == "stratify" else deciding_column(split)


def more_classes_hint(split: Json, target: str, kind: str) -> str:
    """Return what brings a second class of the target into the training part. `kind` is that of its column."""
    if any(split.get(name) is not None for name in _WITHOUT_STRATIFY):
        return "Add rows of another class to the training part, or divide the rows in another way with split."
    if split.get("stratify") == target:
        return "Add rows of the other classes."
    own = split | {"stratify": target}
    evenly = f"give each part the same shares of the classes, split => {_example(own)}; or "
    other_seed = f"change the seed, split => {_example(split | {'seed': split.get('seed', 0) + 1})}"
    return f"Add rows; or {evenly if kind in SPLIT_COLUMN_KINDS['stratify'] else ''}{other_seed}."


def _example(split: Json) -> str:
    return "'" + json.dumps(split, ensure_ascii=False).replace("'", "''") + "'"


def check_split_column(option: str, column: str, kind: str, description: str) -> None:
    """Raise RequestError for a column of a kind that `option`, "by" or "column", cannot name.

    `column` and `description` name the column and its type for the message.
    """
    if kind not in SPLIT_COLUMN_KINDS[option]:
        message = f'split: column {column} {description}, which "{option}" cannot be'
        raise RequestError(message, hint=SPLIT_COLUMN_HINTS[option])


def check_split_use(split: Json, targets: Sequence[str], features: Sequence[str] | None) -> None:
    """Raise RequestError if the deciding column is a target, or says which rows test and is also a feature.

    `features` are the features that the request names, or None.
    """
    for target in targets:
        if target in split.get("key", ()):
            hint = "Name columns whose values do not change."
            raise RequestError(f'split: "key" names the target "{target}"', hint=hint)
    column = deciding_column(split)
    if column is not None and column in targets and "stratify" not in split:
        raise RequestError(f'split: column "{column}" is the target', hint="Name another column.")
    if features is not None and split.get("column") in features:
        message = f'"{split["column"]}" says which rows test, and is also a feature'
        raise RequestError(message, hint="Leave it out of features.")
