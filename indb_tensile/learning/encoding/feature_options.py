"""The options of `preprocess`: each has one value for all columns, or one value for each column that it names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from indb_tensile.learning.decoding.documents import DocumentPath
from indb_tensile.learning.encoding.encoders import Missing
from indb_tensile.learning.encoding.image_decoding import ImageForm
from indb_tensile.learning.storage.columns import Column, ColumnKind
from indb_tensile.request.image_rules import CHANNELS, IMAGE
from indb_tensile.request.parameter_rules import Rule
from indb_tensile.request.preprocess_rules import (
    PATH_KINDS,
    PREPROCESS,
    accepts_missing_rule,
    check_preprocess,
    check_preprocess_columns,
    path_steps,
)

# The encoding of text columns for networks that embed categories. The option `encode` cannot name it.
EMBEDDED = "embedding"
TOKENS = "tokens"  # the encoding of text columns as sequences of tokens
# By how a text becomes numbers: each category has a mean or a vector of its own and no column, so many cost little.
_MOST_CATEGORIES = {"target": 10_000, EMBEDDED: 1_000}
_MOST_OF_PAIRS = 10_000  # where the items of a category are told apart by nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureOptions:
    """The options of `preprocess`, each for all columns or by column.

    `standardize` says whether a column is standardised, `scale` which function is applied before, `encode` how a text
    column becomes numbers (a list is the order of its texts), `categories` how many categories it has, `vocabulary`
    and `length` how many tokens there are and how many of a text are read, `size`, `channels` and `resize` to which
    form images are brought, `on_error` what an image that cannot be read leads to, `missing` what a missing value
    becomes, and `paths` which values of documents become columns. If `embeds` is true, a text column for which
    `encode` says nothing is embedded by the network. If `pairs` is true, it has more categories. A network with
    `longest` reads no more tokens of a text than that.
    """

    standardize: bool | dict[str, bool]
    scale: str | dict[str, str]
    encode: str | dict[str, Any] | None
    categories: int | dict[str, int]
    vocabulary: int | dict[str, int]
    length: int | dict[str, int] | None
    size: tuple[int, int] | list[int] | dict[str, Any] | None
    channels: str | dict[str, str] | None
    resize: str | dict[str, str]
    on_error: str | dict[str, str]
    missing: Missing | dict[str, Any]
    paths: dict[str, dict[str, str]]
    embeds: bool = False
    pairs: bool = False
    longest: int | None = None

    @classmethod
    def parse(cls, options: dict[str, Any]) -> "FeatureOptions":
        """Check the options and fill in defaults.

        Raises RequestError for an unknown name, a wrong type or an unknown rule.
        """
        checked = check_preprocess(options)
        return cls(**{name: _as_option(checked.get(name), rule) for name, rule in PREPROCESS.items()})

    def embedding(self, *, pairs: bool = False) -> "FeatureOptions":
        """Return a copy of these options whose text columns are encoded for a network that embeds categories."""
        return replace(self, embeds=True, pairs=pairs)

    def check(self, features: Mapping[str, Column], columns: Sequence[str]) -> None:
        """Raise RequestError if an option names a column that the option does not apply to.

        `columns` are the names of all columns of the table.
        """
        types = {name: (own.type, own.wire.kind.value if own.wire else "") for name, own in features.items()}
        check_preprocess_columns(dict(self._by_column()), types, "the table", columns)

    def standardizes(self, name: str) -> bool:
        """Return whether this column is centred and scaled."""
        return self.standardize.get(name, True) if isinstance(self.standardize, dict) else self.standardize

    def scaling(self, name: str, kind: ColumnKind) -> str:
        """Return the function that is applied to this column before it is standardised, or "standard" for none."""
        scale = self.scale.get(name, "standard") if isinstance(self.scale, dict) else self.scale
        return scale if kind in PREPROCESS["scale"]["kinds"] else "standard"

    def encoding(self, name: str) -> str | tuple[str, ...]:
        """Return the name of this text column's encoding, or its texts in the order in which they are numbered."""
        encode = self.encode.get(name) if isinstance(self.encode, dict) else self.encode
        if encode is None or encode == IMAGE:
            return EMBEDDED if self.embeds else "onehot"
        return tuple(encode) if isinstance(encode, list) else str(encode)

    def most_categories(self, name: str) -> int:
        """Return how many texts of this column get a category of their own."""
        default: int = PREPROCESS["categories"]["default"]
        encoding = self.encoding(name)
        many = _MOST_CATEGORIES.get(encoding) if isinstance(encoding, str) else None
        if self.pairs and encoding == EMBEDDED:
            many = _MOST_OF_PAIRS
        if isinstance(self.categories, dict):
            return self.categories.get(name, many or default)
        return max(many, self.categories) if many is not None else self.categories

    def most_tokens(self, name: str) -> int:
        """Return how many different tokens this column of texts may have."""
        default: int = PREPROCESS["vocabulary"]["default"]
        return self.vocabulary.get(name, default) if isinstance(self.vocabulary, dict) else self.vocabulary

    def token_length(self, name: str) -> int | None:
        """Return how many tokens of a text of this column are read, or None if the texts decide."""
        return self.length.get(name) if isinstance(self.length, dict) else self.length

    def image_size(self, name: str) -> tuple[int, int] | None:
        """Return the requested height and width of this column's images, or None if the images decide."""
        size = self.size.get(name) if isinstance(self.size, dict) else self.size
        return None if size is None else (int(size[0]), int(size[1]))

    def image_channels(self, name: str) -> int | None:
        """Return the requested number of channels of this column's images, or None if the images decide."""
        word = self.channels.get(name) if isinstance(self.channels, dict) else self.channels
        return None if word is None else CHANNELS[word]

    def image_resize(self, name: str) -> str:
        """Return how this column's images are brought to their size."""
        default: str = PREPROCESS["resize"]["default"]
        return self.resize.get(name, default) if isinstance(self.resize, dict) else self.resize

    def image_form(self, name: str, shape: Sequence[int]) -> ImageForm:
        """Return the form of this column's images. `shape` is their channels, height and width."""
        channels, height, width = shape
        return ImageForm(height=height, width=width, channels=channels, resize=self.image_resize(name))

    def skips_errors(self, name: str) -> bool:
        """Return whether rows are left out whose image in this column cannot be read."""
        rule = self.on_error.get(name, "stop") if isinstance(self.on_error, dict) else self.on_error
        return rule == "skip"

    def missing_rule(self, name: str, kind: ColumnKind) -> Missing:
        """Return the rule for this column's missing values.

        A rule for all columns applies only to columns whose kind accepts the rule. In other columns a missing text is
        a category of its own, and any other missing value is replaced by the mean.
        """
        rule = self.missing.get(name, "mean") if isinstance(self.missing, dict) else self.missing
        if not isinstance(self.missing, dict) and not accepts_missing_rule(kind, rule):
            return "mean"
        constant = rule["constant"] if isinstance(rule, dict) else None
        return rule if constant is None or not isinstance(constant, int | float) else float(constant)

    def document_paths(self, names: Sequence[str]) -> tuple[DocumentPath, ...]:
        """Return the chosen paths of these documents."""
        return tuple(
            DocumentPath(
                name=f"{column}.{path}", column=column, steps=path_steps(path), kind=ColumnKind(PATH_KINDS[word])
            )
            for column in names
            for path, word in self.paths.get(column, {}).items()
        )

    def _by_column(self) -> list[tuple[str, dict[str, Any]]]:
        values = [(option, getattr(self, option)) for option in PREPROCESS]
        return [(option, value) for option, value in values if isinstance(value, dict)]


def _as_option(value: Any, rule: Rule) -> Any:
    """Return an option's value, its default, or its values by column. A number for missing values becomes a float."""
    if isinstance(value, dict):
        return {name: own if isinstance(own, dict) else _as_option(own, rule) for name, own in value.items()}
    if value is None:
        return rule["default"]
    is_number = rule["type"] == "rule" and not isinstance(value, str)
    return float(value) if is_number else value
