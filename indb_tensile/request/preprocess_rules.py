"""The options of preprocessing, and the columns that each option applies to.

An option has one value for all columns, or an object with a value for each column that the object names. `kinds`
lists the kinds of columns that the option applies to; naming another column is refused. A path that is chosen in a
document counts as a column with the name `column.path`.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import MissingColumnError, RequestError
from .abbreviation import shown
from .near_names import did_you_mean
from .parameter_rules import Json, Rule, check_names, check_object, describe_rule, fits

# The kind of the column that a path becomes, by the word that a request uses.
PATH_KINDS = {"number": "float", "boolean": "boolean", "text": "text", "time": "time", "labels": "labels"}
PREPROCESS: dict[str, Rule] = {
    "standardize": {
        "type": "boolean",
        "default": True,
        "kinds": ["integer", "float", "duration", "array", "image"],
    },
    "scale": {
        "type": "choice",
        "values": ["standard", "log", "power", "quantile"],
        "default": "standard",
        "kinds": ["integer", "float", "duration"],
    },
    "encode": {
        "type": "encoding",
        "values": ["onehot", "ordinal", "target", "hash", "tokens", "image"],
        "default": None,
        "kinds": ["text", "image"],
    },
    "categories": {"type": "integer", "minimum": 1, "maximum": 10000, "default": 32, "kinds": ["text", "labels"]},
    "vocabulary": {"type": "integer", "minimum": 300, "maximum": 32768, "default": 8000, "kinds": ["text"]},
    "length": {"type": "integer", "minimum": 1, "maximum": 1024, "default": None, "kinds": ["text"]},
    "size": {
        "type": "integers",
        "minimum": 1,
        "maximum": 1024,
        "length": [2, 2],
        "default": None,
        "kinds": ["image"],
    },
    "channels": {"type": "choice", "values": ["grey", "rgb"], "default": None, "kinds": ["image"]},
    "resize": {"type": "choice", "values": ["crop", "pad", "stretch"], "default": "crop", "kinds": ["image"]},
    "on_error": {"type": "choice", "values": ["stop", "skip"], "default": "stop", "kinds": ["image"]},
    "missing": {
        "type": "rule",
        "values": ["mean", "median", "most_frequent", "zero", "indicator", "error"],
        "default": "mean",
        "kinds": [
            *("integer", "float", "boolean", "duration", "text", "date", "time", "clock", "array", "labels"),
            "image",
        ],
    },
    "paths": {"type": "paths", "default": {}, "kinds": ["document"]},
}
# The rules for missing values of the kinds that do not accept every rule, and accept no number. A missing text is a
# category of its own, as are missing labels, and a missing date or time is replaced by the mean.
_TIME_RULES = ("mean", "median", "most_frequent", "indicator", "error")
MISSING_RULES: dict[str, tuple[str, ...]] = {
    "text": ("most_frequent", "error"),
    "labels": ("error",),
    "image": ("mean", "error"),
    **dict.fromkeys(("date", "time", "clock"), _TIME_RULES),
}
IMAGE_KIND = "image"  # kind of columns of type bytea
_OF_ARRAYS = ("mean", "median", "zero", "indicator", "error")


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
    derived = {name: (word, PATH_KINDS[word]) for name, word in derived_columns(options).items()}
    for name in derived.keys() & set(columns):
        message = f'preprocess: the path "{name}" has the name of another column of {relation}'
        raise RequestError(message, hint="Rename the column in a view, and train on the view.")
    known = {**features, **derived}
    for option, value in options.items():
        for name, own in value.items() if isinstance(value, dict) else ():
            if name in known:
                _check_kind(option, name, *known[name], own)
            elif name not in columns:
                message = f'preprocess: "{option}" names column "{name}", which {relation} does not have'
                hint = f"{did_you_mean(name, columns)}The table's columns are {', '.join(columns) or 'none'}."
                raise MissingColumnError(message, hint=hint)
            else:
                message = f'preprocess: "{option}" names column "{name}", which is not a feature'
                raise RequestError(message, hint=f"Name features only: {', '.join(features)}.")


def derived_columns(options: Json) -> dict[str, str]:
    """Return the names of the columns that the chosen paths become, with the word for the kind of each."""
    paths = options.get("paths") or {}
    return {f"{column}.{path}": word for column, chosen in paths.items() for path, word in chosen.items()}


def path_steps(path: str) -> tuple[str, ...]:
    """Return the keys of a path. A dot within a key is written with a backslash before it."""
    return tuple(step.replace("\\.", ".") for step in re.split(r"(?<!\\)\.", path))


def accepts_missing_rule(kind: str, rule: Any) -> bool:
    """Return whether columns of this kind accept the rule for missing values."""
    if kind == "array" and isinstance(rule, str):
        return rule in _OF_ARRAYS
    if isinstance(rule, dict):  # a constant, which one column is given
        return kind == "text" if isinstance(rule["constant"], str) else kind not in MISSING_RULES
    return kind not in MISSING_RULES or rule in MISSING_RULES[kind]


def _check_value(option: str, of_column: str, value: Any) -> None:
    """Raise RequestError for a value that the option does not accept."""
    rule = PREPROCESS[option]
    match rule["type"]:
        case "rule":
            valid, allowed = _is_missing_rule(value, rule, single=bool(of_column)), _MISSING_ALLOWED
        case "encoding":
            valid = fits(value, {"type": "choice", "values": rule["values"]}) or (
                bool(of_column) and _is_order(value)
            )
            allowed = f"one of {', '.join(rule['values'])}, or for a column the list of its texts in their order"
        case "paths":
            valid, allowed = bool(of_column) and _is_paths(value), _PATHS_ALLOWED
        case _:
            valid, allowed = fits(value, rule), describe_rule(rule)
    if not valid:
        example = f'{{"{option}": {{"price": {_EXAMPLES[option]}}}}}'
        message = f'preprocess: "{option}"{of_column} is {shown(value)}'
        every = "by column" if option == "paths" else "for all columns or by column"
        near = did_you_mean(value, rule.get("values", ()))
        raise RequestError(message, hint=f"{near}Give {allowed}, {every}, such as {example}.")


def _is_missing_rule(value: Any, rule: Rule, *, single: bool) -> bool:
    if isinstance(value, dict):
        return (
            single
            and set(value) == {"constant"}
            and (isinstance(value["constant"], str) or _is_number(value["constant"]))
        )
    return _is_number(value) or (isinstance(value, str) and value in rule["values"])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_order(value: Any) -> bool:
    texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return texts and 2 <= len(value) <= PREPROCESS["categories"]["maximum"] and len(set(value)) == len(value)


def _is_paths(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and 0 < len(value) <= _MOST_PATHS
        and all(
            all(path_steps(path)) and isinstance(word, str) and word in PATH_KINDS for path, word in value.items()
        )
    )


def _check_kind(option: str, name: str, column_type: str, kind: str, value: Any) -> None:
    """Raise RequestError for an option that has no meaning for a column of this kind."""
    kinds = PREPROCESS[option]["kinds"]
    if kind not in kinds:
        message = f'preprocess: "{option}" means nothing to column "{name}" of type {column_type}'
        raise RequestError(message, hint=f"It is for columns of kind {' or '.join(kinds)}: leave it out.")
    if option == "encode" and (kind == IMAGE_KIND) != (value == IMAGE_KIND):
        message = f'preprocess: "encode" of column "{name}" of type {column_type} cannot be {shown(value)}'
        only = "image" if kind == IMAGE_KIND else ", ".join(PREPROCESS["encode"]["values"][:-1])
        raise RequestError(message, hint=f"Use {only}, or leave it out.")
    if option == "missing" and not accepts_missing_rule(kind, value):
        message = f'preprocess: "missing" of column "{name}" of type {column_type} cannot be {shown(value)}'
        rules = MISSING_RULES.get(kind, _OF_ARRAYS)
        hint = f"Use {' or '.join(rules)}, or leave it out."
        raise RequestError(message, detail=_WITHOUT_RULE.get(kind, ""), hint=hint)


_MOST_PATHS = 1000  # most paths of one document; more values are better stored as columns
_MISSING_ALLOWED = f"one of {', '.join(PREPROCESS['missing']['values'])}, or a number, or for a column " + json.dumps(
    {"constant": "a text"}
)
_PATHS_ALLOWED = f"an object of paths, each with its kind ({', '.join(PATH_KINDS)})"
_WITHOUT_RULE = {
    "text": "A missing text is a category of its own.",
    "labels": "Missing labels are a category of their own.",
    "image": "A missing image becomes the mean colour.",
    **dict.fromkeys(("date", "time", "clock"), "A missing date or time becomes the mean."),
}
_EXAMPLES = {
    "standardize": "false",
    "scale": '"log"',
    "encode": '"ordinal"',
    "categories": "50",
    "vocabulary": "4000",
    "length": "64",
    "size": "[64, 64]",
    "channels": '"grey"',
    "resize": '"pad"',
    "on_error": '"skip"',
    "missing": '"zero"',
    "paths": '{"net.amount": "number"}',
}
