"""What `preprocess` may say: for all columns at once, or for each column by its name."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from indb_tensile.errors import RequestError
from indb_tensile.learning.columns import Kind
from indb_tensile.learning.encoders import Missing
from indb_tensile.learning.parameters import Specification, fits, wanted

# A value holds for every column, or is an object with one for each column that it names. `kinds` says which columns
# an option means something to: named, another one is an error.
PREPROCESS: dict[str, Specification] = {
    "standardize": {"type": "boolean", "default": True, "kinds": ["integer", "float", "array"]},
    "categories": {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 32, "kinds": ["text"]},
    "missing": {
        "type": "rule",
        "values": ["mean", "median", "zero", "indicator", "error"],
        "default": "mean",
        "kinds": [kind.value for kind in Kind],
    },
}
# The rules of those kinds of columns that know fewer than all, and no number: a missing text is a category of its
# own, a missing moment is the mean.
_OF_MOMENTS = ("mean", "indicator", "error")
RULES: dict[str, tuple[str, ...]] = {"text": ("error",), "date": _OF_MOMENTS, "time": _OF_MOMENTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureOptions:
    """What is standardised, how many categories a text has, what missing becomes: for all, or by column."""

    standardize: bool | dict[str, bool]
    categories: int | dict[str, int]
    missing: Missing | dict[str, Missing]

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "FeatureOptions":
        """Raises RequestError for an unknown name, a wrong type or an unknown rule."""
        for name in given:
            if name not in PREPROCESS:
                hint = f"Known options: {', '.join(PREPROCESS)}."
                raise RequestError(f'preprocess: unknown option "{name}"', hint=hint)
        return cls(**{name: _checked(name, given.get(name), rule) for name, rule in PREPROCESS.items()})

    def check(self, kinds: Mapping[str, Kind]) -> None:
        """Raise RequestError for a column that an option names and means nothing to; `kinds` are the features'."""
        for option, values in self._by_column():
            for name, value in values.items():
                kind = kinds[name]
                if kind not in PREPROCESS[option]["kinds"]:
                    hint = f"It is for columns of kind {' or '.join(PREPROCESS[option]['kinds'])}: leave it out."
                    message = f'preprocess: "{option}" means nothing to {kind} column "{name}"'
                    raise RequestError(message, hint=hint)
                if option == "missing" and not _knows(kind, value):
                    own = "text is a category of its own" if kind is Kind.TEXT else "moment is its mean"
                    raise RequestError(
                        f'preprocess: "missing" of {kind} column "{name}" cannot be {value}',
                        detail=f"A missing {own}.",
                        hint=f"Use {' or '.join(RULES[kind])}, or leave it out.",
                    )

    def standardizes(self, name: str) -> bool:
        """Whether this column is centred and scaled."""
        return self.standardize.get(name, True) if isinstance(self.standardize, dict) else self.standardize

    def most_categories(self, name: str) -> int:
        """How many texts of this column have a place of their own."""
        default: int = PREPROCESS["categories"]["default"]
        return self.categories.get(name, default) if isinstance(self.categories, dict) else self.categories

    def rule(self, name: str, kind: Kind) -> Missing:
        """What becomes of this column's missing values. A rule for all columns holds for those that know it."""
        if isinstance(self.missing, dict):
            return self.missing.get(name, "mean")
        return self.missing if _knows(kind, self.missing) else "mean"

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that an option names, sorted."""
        return tuple(sorted({name for _, values in self._by_column() for name in values}))

    def _by_column(self) -> list[tuple[str, dict[str, Any]]]:
        values = [(option, getattr(self, option)) for option in PREPROCESS]
        return [(option, value) for option, value in values if isinstance(value, dict)]


def _knows(kind: Kind, rule: Missing) -> bool:
    return kind.value not in RULES or rule in RULES[kind.value]


def _checked(option: str, given: Any, rule: Specification) -> Any:
    if given is None:
        return rule["default"]
    if not isinstance(given, dict):
        return _value(option, "", given, rule)
    return {name: _value(option, f' of column "{name}"', value, rule) for name, value in given.items()}


def _value(option: str, of_column: str, value: Any, rule: Specification) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if rule["type"] == "rule" and number and abs(value) <= sys.float_info.max:
        return float(value)
    if rule["type"] == "rule":
        fitting, words = value in rule["values"], f"one of {', '.join(rule['values'])}, or a number"
    else:
        fitting, words = fits(value, rule), wanted(rule)
    if not fitting:
        hint = (
            f'Give {words}, for all columns or by column, such as {{"{option}": {{"price": {_EXAMPLES[option]}}}}}.'
        )
        raise RequestError(f'preprocess: "{option}"{of_column} is {value!r}', hint=hint)
    return value


_EXAMPLES = {"standardize": "false", "categories": "50", "missing": '"zero"'}
