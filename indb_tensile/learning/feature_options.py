"""The options of `preprocess`: each has one value for all columns, or one value for each column that it names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indb_tensile.learning.columns import Column, ColumnKind
from indb_tensile.learning.encoders import Missing
from indb_tensile.request.parameter_rules import Rule
from indb_tensile.request.preprocess_rules import (
    PREPROCESS,
    accepts_missing_rule,
    check_preprocess,
    check_preprocess_columns,
)


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
    def parse(cls, options: dict[str, Any]) -> "FeatureOptions":
        """Check the options and fill in defaults.

        Raises RequestError for an unknown name, a wrong type or an unknown rule.
        """
        checked = check_preprocess(options)
        return cls(**{name: _as_option(checked.get(name), rule) for name, rule in PREPROCESS.items()})

    def check(self, features: Mapping[str, Column], columns: Sequence[str]) -> None:
        """Raise RequestError if an option names a column that the option does not apply to.

        `columns` are the names of all columns of the table.
        """
        types = {name: (own.type, own.wire.kind.value if own.wire else "") for name, own in features.items()}
        check_preprocess_columns(dict(self._by_column()), types, "the table", columns)

    def standardizes(self, name: str) -> bool:
        """Return whether this column is centred and scaled."""
        return self.standardize.get(name, True) if isinstance(self.standardize, dict) else self.standardize

    def most_categories(self, name: str) -> int:
        """Return how many texts of this column get a category of their own."""
        default: int = PREPROCESS["categories"]["default"]
        return self.categories.get(name, default) if isinstance(self.categories, dict) else self.categories

    def missing_rule(self, name: str, kind: ColumnKind) -> Missing:
        """Return the rule for this column's missing values.

        A rule for all columns applies only to columns whose kind accepts the rule. In other columns a missing text is
        a category of its own, and any other missing value is replaced by the mean.
        """
        if isinstance(self.missing, dict):
            return self.missing.get(name, "mean")
        return self.missing if accepts_missing_rule(kind, self.missing) else "mean"

    def _by_column(self) -> list[tuple[str, dict[str, Any]]]:
        values = [(option, getattr(self, option)) for option in PREPROCESS]
        return [(option, value) for option, value in values if isinstance(value, dict)]


def _as_option(value: Any, rule: Rule) -> Any:
    """Return an option's value, its default, or its values by column. A number for missing values becomes a float."""
    if isinstance(value, dict):
        return {name: _as_option(own, rule) for name, own in value.items()}
    if value is None:
        return rule["default"]
    is_number = rule["type"] == "rule" and not isinstance(value, str)
    return float(value) if is_number else value
