"""The options of `preprocess`: each has one value for all columns, or one value for each column that it names."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from indb_tensile.errors import RequestError
from indb_tensile.learning.columns import ColumnKind
from indb_tensile.learning.encoders import Missing
from indb_tensile.learning.parameters import Specification, fits, wanted

# An option has one value for every column, or an object with a value for each named column. `kinds` lists the kinds
# of columns that the option applies to; naming another column is an error.
PREPROCESS: dict[str, Specification] = {
    "standardize": {"type": "boolean", "default": True, "kinds": ["integer", "float", "array"]},
    "categories": {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 32, "kinds": ["text"]},
    "missing": {
        "type": "rule",
        "values": ["mean", "median", "zero", "indicator", "error"],
        "default": "mean",
        "kinds": [kind.value for kind in ColumnKind],
    },
}
# The rules of the kinds that do not accept every rule, and accept no number: a missing text is a category of its
# own, a missing date or timestamp is the mean.
_TIME_RULES = ("mean", "indicator", "error")
RULES: dict[str, tuple[str, ...]] = {"text": ("error",), "date": _TIME_RULES, "time": _TIME_RULES}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureOptions:
    """The options of `preprocess`, each for all columns or by column.

    `standardize` says whether a column is standardised, `categories` how many categories a text column has, and
    `missing` what a missing value becomes.
    """

    standardize: bool | dict[str, bool]
    categories: int | dict[str, int]
    missing: Missing | dict[str, Missing]

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> "FeatureOptions":
        """Check the options and fill in defaults.

        Raises RequestError for an unknown name, a wrong type or an unknown rule.
        """
        for name in options:
            if name not in PREPROCESS:
                hint = f"Known options: {', '.join(PREPROCESS)}."
                raise RequestError(f'preprocess: unknown option "{name}"', hint=hint)
        return cls(**{name: _parse_option(name, options.get(name), rule) for name, rule in PREPROCESS.items()})

    def check(self, kinds: Mapping[str, ColumnKind]) -> None:
        """Raise RequestError if an option names a column that the option does not apply to.

        `kinds` contains the kind of each feature.
        """
        for option, values in self._by_column():
            for name, value in values.items():
                kind = kinds[name]
                if kind not in PREPROCESS[option]["kinds"]:
                    hint = f"It is for columns of kind {' or '.join(PREPROCESS[option]['kinds'])}: leave it out."
                    message = f'preprocess: "{option}" means nothing to {kind} column "{name}"'
                    raise RequestError(message, hint=hint)
                if option == "missing" and not _accepts(kind, value):
                    own = (
                        "text is a category of its own"
                        if kind is ColumnKind.TEXT
                        else "date or timestamp becomes the mean"
                    )
                    raise RequestError(
                        f'preprocess: "missing" of {kind} column "{name}" cannot be {value}',
                        detail=f"A missing {own}.",
                        hint=f"Use {' or '.join(RULES[kind])}, or leave it out.",
                    )

    def standardizes(self, name: str) -> bool:
        """Return whether this column is centred and scaled."""
        return self.standardize.get(name, True) if isinstance(self.standardize, dict) else self.standardize

    def most_categories(self, name: str) -> int:
        """Return how many texts of this column get a category of their own."""
        default: int = PREPROCESS["categories"]["default"]
        return self.categories.get(name, default) if isinstance(self.categories, dict) else self.categories

    def rule(self, name: str, kind: ColumnKind) -> Missing:
        """Return the rule for this column's missing values.

        A rule for all columns applies only to columns whose kind accepts the rule; other columns use the mean.
        """
        if isinstance(self.missing, dict):
            return self.missing.get(name, "mean")
        return self.missing if _accepts(kind, self.missing) else "mean"

    @property
    def named(self) -> tuple[str, ...]:
        """Return the columns that an option names, sorted."""
        return tuple(sorted({name for _, values in self._by_column() for name in values}))

    def _by_column(self) -> list[tuple[str, dict[str, Any]]]:
        values = [(option, getattr(self, option)) for option in PREPROCESS]
        return [(option, value) for option, value in values if isinstance(value, dict)]


def _accepts(kind: ColumnKind, rule: Missing) -> bool:
    return kind.value not in RULES or rule in RULES[kind.value]


def _parse_option(option: str, setting: Any, rule: Specification) -> Any:
    if setting is None:
        return rule["default"]
    if not isinstance(setting, dict):
        return _check_value(option, "", setting, rule)
    return {name: _check_value(option, f' of column "{name}"', value, rule) for name, value in setting.items()}


def _check_value(option: str, of_column: str, value: Any, rule: Specification) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if rule["type"] == "rule" and number and abs(value) <= sys.float_info.max:
        return float(value)
    if rule["type"] == "rule":
        valid, allowed = value in rule["values"], f"one of {', '.join(rule['values'])}, or a number"
    else:
        valid, allowed = fits(value, rule), wanted(rule)
    if not valid:
        hint = (
            f'Give {allowed}, for all columns or by column, such as {{"{option}": {{"price": {_EXAMPLES[option]}}}}}.'
        )
        raise RequestError(f'preprocess: "{option}"{of_column} is {value!r}', hint=hint)
    return value


_EXAMPLES = {"standardize": "false", "categories": "50", "missing": '"zero"'}
