"""Preprocessing: fitted once (preprocessor_fitting.py), stored as JSON, applied to tables and to single rows.

The numbers of an encoded row are in this order: all scalars (numbers, booleans and intervals) in the order of the
table, the indicators of missing scalars, texts, times, arrays, texts that are not one-hot, sets of labels, numbers of
categories, tokens, pixels of images. An `input_shape` reshapes the row to an image or a sequence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DatabaseError, DataError, MissingError
from indb_tensile.learning.decoding.documents import DocumentPath, with_derived, with_values
from indb_tensile.learning.decoding.jsonrows import column_of, duration, named, number, single, truth
from indb_tensile.learning.encoding.encoders import Arrays, Numbers, Times
from indb_tensile.learning.encoding.image_encoders import Images
from indb_tensile.learning.encoding.narrow_rows import NarrowForm
from indb_tensile.learning.encoding.network_tokens import BoundTokens, NetworkTokenizer, NetworkTokens
from indb_tensile.learning.encoding.packed_rows import Packed, PackedForm
from indb_tensile.learning.encoding.pair_encoding import item_numbers_of_rows
from indb_tensile.learning.encoding.targets import TargetEncoding
from indb_tensile.learning.encoding.text_encoders import (
    Codes,
    Hashed,
    LabelSets,
    Ordinals,
    TargetMeans,
    TextFacts,
    Texts,
    filled,
)
from indb_tensile.learning.encoding.tokens import TokenFacts, Tokens
from indb_tensile.learning.storage.columns import ColumnKind, Columns
from indb_tensile.learning.storage.moments import Matrix
from indb_tensile.learning.storage.row_storage import row_blocks

Tensor32 = npt.NDArray[np.float32]

# The version of the stored form; a reader refuses newer ones. In format 1 times have no `parts`. Format 3 adds sets
# of labels, documents, intervals, scalings, and texts that are not one-hot. Format 4 adds `codes`, format 5 adds
# targets of several values or labels, and `tokens`. Format 6 adds `network_tokens` and images.
FORMAT = 6
NUMBERS = (ColumnKind.INTEGER, ColumnKind.FLOAT, ColumnKind.BOOLEAN)
SCALARS = (*NUMBERS, ColumnKind.DURATION)
TIMES = (ColumnKind.DATE, ColumnKind.TIME, ColumnKind.CLOCK)
_PLURALS = {
    ColumnKind.INTEGER: "numbers",
    ColumnKind.DURATION: "intervals",
    ColumnKind.TEXT: "texts",
    ColumnKind.DATE: "times",
    ColumnKind.CLOCK: "times of day",
    ColumnKind.ARRAY: "arrays",
    ColumnKind.LABELS: "arrays of texts",
    ColumnKind.DOCUMENT: "json documents",
    ColumnKind.IMAGE: "images",
}
TextEncoder = Texts | Ordinals | Hashed | TargetMeans | Codes | Tokens | NetworkTokens
Encoder = Texts | Ordinals | Hashed | TargetMeans | Codes | Tokens | BoundTokens | Times | Arrays | LabelSets | Images
TRANSFORM_BLOCK_NUMBERS = 1 << 20  # rows are encoded in float64, in blocks of this many numbers
_FLOAT32_MAX = float(np.finfo(np.float32).max)


class EncodedPart(NamedTuple):
    """The numbers of an encoded row that are made from one column: those from `begin` to `end`, before the reshaping.

    `averaged` says whether the mean of several such numbers has a meaning; the mean of the numbers of categories has
    none.
    """

    feature: str
    begin: int
    end: int
    averaged: bool


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The fitted preprocessing as plain data: everything that turns rows into tensors.

    `features` are the columns in the order in which the features were chosen. `documents` are the paths that become
    columns, and `fills` are the texts that replace missing texts, by column. `singles` are the columns of numbers and
    of arrays that had single precision: the JSON of such a number is not the number itself.
    """

    format: int
    features: tuple[str, ...]
    numbers: Numbers
    texts: tuple[Texts, ...]
    times: tuple[Times, ...]
    arrays: tuple[Arrays, ...]
    target: TargetEncoding
    input_shape: tuple[int, ...]
    ordinals: tuple[Ordinals, ...] = ()
    hashed: tuple[Hashed, ...] = ()
    target_means: tuple[TargetMeans, ...] = ()
    labels: tuple[LabelSets, ...] = ()
    documents: tuple[DocumentPath, ...] = ()
    fills: dict[str, str] = field(default_factory=dict)
    codes: tuple[Codes, ...] = ()
    tokens: tuple[Tokens, ...] = ()
    network_tokens: tuple[NetworkTokens, ...] = ()
    singles: tuple[str, ...] = ()
    images: tuple[Images, ...] = ()

    @property
    def all_texts(self) -> tuple[TextEncoder, ...]:
        """Return the encoders of all text columns."""
        parts = (
            self.texts,
            self.ordinals,
            self.hashed,
            self.target_means,
            self.codes,
            self.tokens,
            self.network_tokens,
        )
        return tuple(chain[TextEncoder](*parts))


class Preprocessor:
    """Applies a recipe to rows. Thread-safe, since it is immutable.

    `text_facts` and `token_facts` describe the text columns of the training rows that `fit` saw. `of_training` has,
    by column, the numbers that encode the training rows themselves, if the encoder of the column would leak their
    targets (text_encoders.py, `TargetMeans`). All are empty for a stored preprocessor.
    """

    def __init__(
        self,
        recipe: Recipe,
        text_facts: tuple[TextFacts, ...] = (),
        of_training: Mapping[str, Matrix] = MappingProxyType({}),
        token_facts: tuple[TokenFacts, ...] = (),
        tokenizer: NetworkTokenizer | None = None,
    ) -> None:
        self.recipe = recipe
        self.text_facts = text_facts
        self.of_training = of_training
        self.token_facts = token_facts
        self.tokenizer = tokenizer

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], tokenizer: NetworkTokenizer | None = None) -> "Preprocessor":
        """Restore the preprocessor that `to_json` returned. `tokenizer` is that of the registered network it needs.

        Raises DatabaseError for anything else.
        """
        try:
            recipe = msgspec.convert(stored, Recipe)
        except msgspec.ValidationError as error:
            raise DatabaseError(f"the stored preprocessing cannot be read: {error}") from error
        if not 1 <= recipe.format <= FORMAT:
            raise DatabaseError(f"the stored preprocessing has format {recipe.format}, this version reads {FORMAT}")
        return cls(recipe, tokenizer=tokenizer)

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as plain data that JSON can represent."""
        stored: dict[str, Any] = msgspec.to_builtins(self.recipe)
        return stored

    @property
    def target(self) -> TargetEncoding:
        """Return the description of the target, which gives the model's output its meaning."""
        return self.recipe.target

    def with_target(self, target: TargetEncoding) -> "Preprocessor":
        """Return the same preprocessing for another meaning of the outputs."""
        recipe = replace(self.recipe, target=target)
        return Preprocessor(recipe, self.text_facts, self.of_training, self.token_facts, self.tokenizer)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one row's tensor."""
        return self.recipe.input_shape

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each number of an encoded row, before the row is reshaped."""
        others = [name for part in self._others for name in part.outputs]
        return (*self.recipe.numbers.outputs, *others)

    @cached_property
    def parts(self) -> tuple[EncodedPart, ...]:
        """Return the parts of an encoded row in their order."""
        numbers = self.recipe.numbers
        scalars = [(name, 1, True) for name in numbers.names]
        scalars += [(numbers.names[place], 1, False) for place in numbers.indicators]
        others = [(part.name, len(part.outputs), isinstance(part, Times | Arrays | Images)) for part in self._others]
        feature_of = {path.name: path.column for path in self.recipe.documents}
        parts, begin = [], 0
        for name, width, averaged in (*scalars, *others):
            parts.append(EncodedPart(feature_of.get(name, name), begin, begin + width, averaged))
            begin += width
        return tuple(parts)

    @cached_property
    def positions(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return, for each feature, the positions of its numbers in an encoded row, before the row is reshaped."""
        places: dict[str, list[int]] = {name: [] for name in self.recipe.features}
        for part in self.parts:
            places[part.feature] += range(part.begin, part.end)
        return {name: np.array(own, np.int64) for name, own in places.items()}

    @property
    def layout(self) -> dict[str, Any]:
        """Return what a network that embeds the values of a row must know of it.

        `numbers` is how many numbers begin an encoded row. `categories` are how many categories each of its last
        values has. If tokens follow them, `vocabularies` are how many tokens there are for each column of texts, and
        `lengths` how many tokens of it a row has. If pixels follow, `images` are the channels, the height and the
        width of each column of images.
        """
        recipe = self.recipe
        layout = {"numbers": len(recipe.numbers.names), "categories": [codes.size for codes in recipe.codes]}
        if recipe.images:
            layout["images"] = [size for image in recipe.images for size in image.shape]
        if recipe.network_tokens:
            size = 1 if self.tokenizer is None else self.tokenizer.size
            lengths = [part.length for part in recipe.network_tokens]
            return layout | {"vocabularies": [size] * len(lengths), "lengths": lengths}
        if not recipe.tokens:
            return layout
        own = recipe.tokens
        return layout | {"vocabularies": [part.size for part in own], "lengths": [part.length for part in own]}

    @property
    def part_layout(self) -> dict[str, Any]:
        """Return the `widths` of the parts of a row, and by what the sum of a part's errors is divided.

        It is their number where they are alike, such as the elements of an array, and 1 for a category, of which two
        numbers at most are wrong, however many there are.
        """
        widths = [part.end - part.begin for part in self.parts]
        divisors = [part.end - part.begin if part.averaged else 1 for part in self.parts]
        return {"widths": widths, "divisors": divisors}

    @property
    def placed_of_training(self) -> tuple[tuple[int, Matrix], ...]:
        """Return `of_training`, each with the position of its first number in an encoded row."""
        means = (part for part in self.recipe.target_means if part.name in self.of_training)
        return tuple((self.outputs.index(part.outputs[0]), self.of_training[part.name]) for part in means)

    def transform(self, columns: Columns) -> Tensor32:
        """Encode columns of a table as (rows, *input_shape).

        Raises MissingError for a missing column, DataError for a column of another kind and for missing values.
        """
        names = self.recipe.features
        absent = [name for name in names if name not in columns]
        if absent:
            raise MissingError(f"the model needs column {', '.join(absent)}, which the table does not have")
        self._require_kinds(columns)
        rows = len(columns[names[0]].missing)
        step = self.block_rows or rows
        if rows <= step:
            return self._encode_rows(columns, 0, rows)
        whole = np.empty((rows, *self.input_shape), np.float32)
        for start, end in row_blocks(rows, step):
            whole[start:end] = self._encode_rows(columns, start, end)
        return whole

    def _encode_rows(self, columns: Columns, start: int, end: int) -> Tensor32:
        columns = {name: columns[name].part(start, end) for name in self.recipe.features}
        columns = with_derived(columns, self.recipe.documents, first_row=start)
        names = self.recipe.numbers.names
        raw = np.empty((len(names), end - start))  # a column's values are adjacent, so it is filled and scaled fast
        for row, name in zip(raw, names, strict=True):
            columns[name].numbers(row)
        return self._encode_parts(raw.T, columns)

    @cached_property
    def skips(self) -> bool:
        """Return whether a row with an image that cannot be read has no answer, instead of an error."""
        return any(image.skips for image in self.recipe.images)

    @cached_property
    def packed_form(self) -> PackedForm | None:
        """Return the compact form of encoded rows, or None for rows without images."""
        images = self.recipe.images
        if not images:
            return None
        numbers = int(np.prod(self.input_shape)) - sum(image.size for image in images)
        return PackedForm(numbers=numbers, images=images, input_shape=self.input_shape)

    @cached_property
    def narrow_form(self) -> NarrowForm | None:
        """Return the form of encoded rows whose tokens take two bytes, or None for rows without such tokens."""
        if self.target.pair is not None:
            return None
        return NarrowForm.of(self.layout, int(np.prod(self.input_shape)))

    def transform_packed(self, columns: Columns, form: PackedForm) -> Packed:
        """Encode columns of a table in the compact form. Their images are decoded, and their kinds are known."""
        columns = with_derived(columns, self.recipe.documents)
        names = self.recipe.numbers.names
        rows = len(columns[self.recipe.features[0]].missing)
        raw = np.empty((len(names), rows))
        for row, name in zip(raw, names, strict=True):
            columns[name].numbers(row)
        pixels = [image.pixels(columns[image.name])[0] for image in self.recipe.images]
        return form.pack(self._encode_dense(raw.T, columns), pixels)

    @property
    def block_rows(self) -> int | None:
        """Return how many rows are encoded at a time, or None for all.

        All rows are encoded at once if missing values are refused, because the error message counts rows from the
        first one.
        """
        if self.recipe.numbers.required or any(part.required for part in self._others):
            return None
        return max(1, TRANSFORM_BLOCK_NUMBERS // max(1, int(np.prod(self.input_shape))))

    def transform_rows(self, rows: Sequence[Any]) -> Tensor32:
        """Encode rows from SQL as (rows, *input_shape).

        A row is an object, an array of values in the order of the features, or the value of the only feature.
        """
        recipe = self.recipe
        single_array = bool(recipe.arrays or recipe.labels)
        objects = [
            with_values(named(row, recipe.features, single_array=single_array), recipe.documents) for row in rows
        ]
        names = recipe.numbers.names
        truths = {path.name for path in recipe.documents if path.kind is ColumnKind.BOOLEAN}
        convert = [
            duration if place in recipe.numbers.durations else truth if name in truths else number
            for place, name in enumerate(names)
        ]
        pairs = list(zip(names, convert, strict=True))
        raw = np.array([[own(name, row[name]) for name, own in pairs] for row in objects], np.float64)
        raw = raw.reshape(len(objects), len(names))
        singles = [place for place, name in enumerate(names) if name in recipe.singles]
        raw[:, singles] = single(raw[:, singles])
        others = {
            part.name: column_of(part.name, self._kinds[part.name][0], [row[part.name] for row in objects])
            for part in self._others
        }
        for name in recipe.singles:
            if name in others:
                others[name] = replace(others[name], values=single(others[name].values))
        return self._encode_parts(raw, others)

    def targets_of(self, rows: Sequence[Mapping[str, Any]]) -> npt.NDArray[Any]:
        """Return the encoded targets of rows from SQL, for an evaluation."""
        if self.target.pair is not None:
            return item_numbers_of_rows(rows, self.target.pair.items)
        name = self.target.name
        data = self.target.column_of_rows(rows)
        if self.target.anomaly is not None:  # a label may be unknown
            return self.target.encode(data)
        if data.missing.any():
            raise DataError(f'target "{name}" is NULL in row {int(np.argmax(data.missing)) + 1}')
        if data.absent().any():
            raise DataError(
                f'target "{name}" is not finite in row {int(np.argmax(data.absent())) + 1}',
                hint="Evaluate on a view without such rows: a model learns from finite targets alone.",
            )
        return self.target.encode(data)

    def _encode_parts(self, raw: Matrix, columns: Columns) -> Tensor32:
        dense = self._encode_dense(raw, columns)
        if self.recipe.images:
            dense = np.hstack([dense, *(image.floats(columns[image.name]) for image in self.recipe.images)])
        return dense.reshape(len(raw), *self.input_shape)

    def _encode_dense(self, raw: Matrix, columns: Columns) -> Tensor32:
        """Encode what is no image, as (rows, numbers)."""
        fills = self.recipe.fills
        parts = [self.recipe.numbers.apply(raw)]
        for part in self._others:
            if isinstance(part, Images):
                continue
            data = columns[part.name]
            parts.append(part.apply(filled(data, fills[part.name]) if part.name in fills else data))
        whole = np.hstack(parts) if len(parts) > 1 else parts[0]
        # A value beyond the range of float32 would become infinite, and so would every result computed from it.
        np.maximum(whole, -_FLOAT32_MAX, out=whole)  # in place: no other code holds this array
        np.minimum(whole, _FLOAT32_MAX, out=whole)
        return whole.astype(np.float32, order="C")

    def _require_kinds(self, columns: Columns) -> None:
        """Raise DataError if a column's kind is not the kind that the model was trained on.

        A column's type may have been changed since.
        """
        for path in self.recipe.documents:
            _require_kind(path.column, columns[path.column].kind, (ColumnKind.DOCUMENT,))
        of_paths = {path.name for path in self.recipe.documents}  # these have the kinds of their paths
        for name, kinds in self._kinds.items():
            if name not in of_paths:
                _require_kind(name, columns[name].kind, kinds)

    @property
    def feature_kinds(self) -> dict[str, ColumnKind]:
        """Return the kind of each feature: of several kinds that a column may have, the first one."""
        documents = {path.column for path in self.recipe.documents}
        return {
            name: ColumnKind.DOCUMENT if name in documents else self._kinds[name][0] for name in self.recipe.features
        }

    @cached_property
    def _kinds(self) -> dict[str, tuple[ColumnKind, ...]]:
        """Return the kinds that each encoded column may have; values of JSON become the first one."""
        recipe = self.recipe
        numbers = recipe.numbers
        kinds: dict[str, tuple[ColumnKind, ...]] = {
            name: (ColumnKind.DURATION,) if place in numbers.durations else NUMBERS
            for place, name in enumerate(numbers.names)
        }
        kinds |= {encoder.name: (ColumnKind.TEXT,) for encoder in recipe.all_texts}
        of_day, of_calendar = (ColumnKind.CLOCK,), (ColumnKind.TIME, ColumnKind.DATE)
        kinds |= {part.name: of_day if "seconds" in part.parts else of_calendar for part in recipe.times}
        kinds |= {part.name: (ColumnKind.ARRAY,) for part in recipe.arrays}
        kinds |= {part.name: (ColumnKind.IMAGE,) for part in recipe.images}
        return kinds | {part.name: (ColumnKind.LABELS,) for part in recipe.labels}

    @cached_property
    def _others(self) -> tuple[Encoder, ...]:
        recipe = self.recipe
        bound = [BoundTokens(tokens=part, tokenizer=self.tokenizer) for part in recipe.network_tokens]
        parts: list[Sequence[Encoder]] = [recipe.texts, recipe.times, recipe.arrays]
        parts += [
            recipe.ordinals,
            recipe.hashed,
            recipe.target_means,
            recipe.labels,
            recipe.codes,
            recipe.tokens,
            bound,
        ]
        parts.append(recipe.images)
        return tuple(encoder for part in parts for encoder in part)


def _require_kind(name: str, own: ColumnKind, kinds: tuple[ColumnKind, ...]) -> None:
    if own not in kinds:
        plural = next(plural for kind, plural in _PLURALS.items() if kind in kinds)
        raise DataError(f'column "{name}" is of kind {own}, the model was trained on {plural}')
