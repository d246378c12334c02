"""The options of preprocessing, and the columns that each option applies to.

An option has one value for all columns, or an object with a value for each column that the object names. `kinds`
lists the kinds of columns that the option applies to; naming another column is refused.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import MissingColumnError, RequestError
from .abbreviation import shown
from .parameter_rules import Json, Rule, check_names, check_object, fits, wanted

PREPROCESS: dict[str, Rule] = {
    "standardize": {"type": "boolean", "default": True, "kinds": ["integer", "float", "array"]},
    "categories": {"type": "integer", "minimum": 1, "maximum": 10000, "default": 32, "kinds": ["text"]},
    "missing": {
        "type": "rule",
        "values": ["mean", "median", "zero", "indicator", "error"],
        "default": "mean",
        "kinds": ["integer", "float", "boolean", "text", "date", "time", "array"],
    },
}
# The rules for missing values of the kinds that do not accept every rule, and accept no number. A missing text is a
# category of its own, and a missing date or timestamp is replaced by the mean.
_TIME_RULES = ("mean", "indicator", "error")
MISSING_RULES: dict[str, tuple[str, ...]] = {"text": ("error",), "date": _TIME_RULES, "time": _TIME_RULES}


def check_preprocess(preprocess: Any) -> Json:
    """Return the options without nulls. Raises RequestError for an unknown name and an invalid value."""
    options = check_object("preprocess", preprocess, PREPROCESS)
    check_names("preprocess", options, PREPROCESS)
    for option, value in options.items():
        if isinstance(value, dict):
            for name, own in value.items():
                _check_value(option, f' of column "{name}"', own)
        elif value is not None:
            _check_value(option, "", value)
    return {option: value for option, value in options.items() if value is not None}


def check_preprocess_columns(
    options: Json, features: Mapping[str, tuple[str, str]], relation: str, columns: Sequence[str]
) -> None:
    """Raise RequestError if a checked option names a column that it does not apply to.

    `features` contains the type and the kind of each feature. `relation` describes the table, and `columns` are all
    its columns. A column that the table does not have raises MissingColumnError.
    """
    for option, value in options.items():
        for name, own in value.items() if isinstance(value, dict) else ():
            if name in features:
                _check_kind(option, name, *features[name], own)
            elif name not in columns:
                message = f'preprocess: "{option}" names column "{name}", which {relation} does not have'
                raise MissingColumnError(message, hint=f"The table's columns are {', '.join(columns) or 'none'}.")
            else:
                message = f'preprocess: "{option}" names column "{name}", which is not a feature'
                raise RequestError(message, hint=f"Name features only: {', '.join(features)}.")


def accepts_missing_rule(kind: str, rule: Any) -> bool:
    """Return whether columns of this kind accept the rule for missing values."""
    return kind not in MISSING_RULES or rule in MISSING_RULES[kind]


def _check_value(option: str, of_column: str, value: Any) -> None:
    """Raise RequestError for a value that the option does not accept."""
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
        raise RequestError(message, hint=f"Give {allowed}, for all columns or by column, such as {example}.")


def _check_kind(option: str, name: str, column_type: str, kind: str, value: Any) -> None:
    """Raise RequestError for an option that has no meaning for a column of this kind."""
    kinds = PREPROCESS[option]["kinds"]
    if kind not in kinds:
        message = f'preprocess: "{option}" means nothing to column "{name}" of type {column_type}'
        raise RequestError(message, hint=f"It is for columns of kind {' or '.join(kinds)}: leave it out.")
    if option == "missing" and not accepts_missing_rule(kind, value):
        own = (
            "A missing text is a category of its own."
            if kind == "text"
            else "A missing date or timestamp becomes the mean."
        )
        message = f'preprocess: "missing" of column "{name}" of type {column_type} cannot be {shown(value)}'
        hint = f"Use {' or '.join(MISSING_RULES[kind])}, or leave it out."
        raise RequestError(message, detail=own, hint=hint)


_EXAMPLES = {"standardize": "false", "categories": "50", "missing": '"zero"'}
