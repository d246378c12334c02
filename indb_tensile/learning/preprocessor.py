"""Preprocessing: fitted once on the training rows, stored as JSON, applied to tables and to single rows.

The numbers of an encoded row are in this order: all scalars (numbers and booleans) in the order of the table, the
indicators of missing scalars, texts, times, arrays. An `input_shape` reshapes the row to an image or a sequence.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DatabaseError, DataError, MissingError, RequestError
from indb_tensile.learning.columns import Column, ColumnData, ColumnKind, Columns, Rows
from indb_tensile.learning.encoders import Arrays, Matrix, Numbers, TextFacts, Texts, Times, require
from indb_tensile.learning.feature_options import FeatureOptions
from indb_tensile.learning.jsonrows import column_of, named, number
from indb_tensile.learning.targets import TargetEncoding
from indb_tensile.request.feature_rules import check_features

Tensor32 = npt.NDArray[np.float32]

FORMAT = 2  # version of the stored form; a reader refuses newer ones. In format 1 times have no `parts`.
_SCALARS = (ColumnKind.INTEGER, ColumnKind.FLOAT, ColumnKind.BOOLEAN)
_TIMES = (ColumnKind.DATE, ColumnKind.TIME)
_PLURALS = {
    ColumnKind.INTEGER: "numbers",
    ColumnKind.TEXT: "texts",
    ColumnKind.DATE: "times",
    ColumnKind.ARRAY: "arrays",
}
_TRANSFORM_BLOCK_NUMBERS = 1 << 20  # rows are encoded in float64, in blocks of this many numbers
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The fitted preprocessing as plain data: everything that turns rows into tensors.

    `features` are the columns in the order in which the features were chosen.
    """

    format: int
    features: tuple[str, ...]
    numbers: Numbers
    texts: tuple[Texts, ...]
    times: tuple[Times, ...]
    arrays: tuple[Arrays, ...]
    target: TargetEncoding
    input_shape: tuple[int, ...]


class Preprocessor:
    """Applies a recipe to rows. Thread-safe, since it is immutable.

    `text_facts` describes the text columns of the training rows that `fit` saw. It is empty for a stored
    preprocessor.
    """

    def __init__(self, recipe: Recipe, text_facts: tuple[TextFacts, ...] = ()) -> None:
        self.recipe = recipe
        self.text_facts = text_facts

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Preprocessor":
        """Restore the preprocessor that `to_json` returned.

        Raises DatabaseError for anything else.
        """
        try:
            recipe = msgspec.convert(stored, Recipe)
        except msgspec.ValidationError as error:
            raise DatabaseError(f"the stored preprocessing cannot be read: {error}") from error
        if not 1 <= recipe.format <= FORMAT:
            raise DatabaseError(f"the stored preprocessing has format {recipe.format}, this version reads {FORMAT}")
        return cls(recipe)

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as plain data that JSON can represent."""
        stored: dict[str, Any] = msgspec.to_builtins(self.recipe)
        return stored

    @property
    def target(self) -> TargetEncoding:
        """Return the description of the target, which gives the model's output its meaning."""
        return self.recipe.target

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one row's tensor."""
        return self.recipe.input_shape

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each number of an encoded row, before the row is reshaped."""
        others = [name for part in self._others for name in part.outputs]
        return (*self.recipe.numbers.outputs, *others)

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
            return self._encode_columns(columns, rows)
        whole = np.empty((rows, *self.input_shape), np.float32)
        for start in range(0, rows, step):
            part = {name: columns[name].part(start, start + step) for name in names}
            whole[start : start + step] = self._encode_columns(part, min(step, rows - start))
        return whole

    def _encode_columns(self, columns: Columns, rows: int) -> Tensor32:
        names = self.recipe.numbers.names
        raw = np.empty((len(names), rows))  # the values of a column are adjacent, so it is filled and scaled fast
        for row, name in zip(raw, names, strict=True):
            columns[name].numbers(row)
        return self._encode_parts(raw.T, columns)

    @property
    def block_rows(self) -> int | None:
        """Return how many rows are encoded at a time, or None for all.

        All rows are encoded at once if missing values are refused, because the error message counts rows from the
        first one.
        """
        if self.recipe.numbers.required or any(part.required for part in self._others):
            return None
        return max(1, _TRANSFORM_BLOCK_NUMBERS // max(1, int(np.prod(self.input_shape))))

    def transform_rows(self, rows: Sequence[Any]) -> Tensor32:
        """Encode rows from SQL as (rows, *input_shape).

        A row is an object, an array of values in the order of the features, or the value of the only feature.
        """
        recipe = self.recipe
        objects = [named(row, recipe.features, single_array=bool(recipe.arrays)) for row in rows]
        names = recipe.numbers.names
        raw = np.array([[number(name, row[name]) for name in names] for row in objects], np.float64)
        others = {
            part.name: column_of(part.name, kind, [row[part.name] for row in objects])
            for kind, parts in (
                (ColumnKind.TEXT, recipe.texts),
                (ColumnKind.TIME, recipe.times),
                (ColumnKind.ARRAY, recipe.arrays),
            )
            for part in parts
        }
        return self._encode_parts(raw.reshape(len(objects), len(names)), others)

    def targets_of(self, rows: Sequence[Mapping[str, Any]]) -> npt.NDArray[Any]:
        """Return the encoded targets of rows from SQL, for an evaluation."""
        name = self.target.name
        if any(name not in row for row in rows):
            raise MissingError(f'a row has no target column "{name}"')
        data = column_of(name, self.target.kind, [row[name] for row in rows])
        if data.missing.any():
            raise DataError(f'target "{name}" is NULL in row {int(np.argmax(data.missing)) + 1}')
        if data.absent().any():
            raise DataError(
                f'target "{name}" is not finite in row {int(np.argmax(data.absent())) + 1}',
                hint="Evaluate on a view without such rows: a model learns from finite targets alone.",
            )
        return self.target.encode(data)

    def _encode_parts(self, raw: Matrix, columns: Columns) -> Tensor32:
        parts = [self.recipe.numbers.apply(raw), *(part.apply(columns[part.name]) for part in self._others)]
        whole = np.hstack(parts) if len(parts) > 1 else parts[0]
        # A value beyond the range of float32 would become infinite, and so would every result computed from it.
        np.clip(whole, -_FLOAT32_MAX, _FLOAT32_MAX, out=whole)  # in place: no other code holds this array
        return whole.astype(np.float32, order="C").reshape(len(raw), *self.input_shape)

    def _require_kinds(self, columns: Columns) -> None:
        """Raise DataError if a column's kind is not the kind that the model was trained on.

        A column's type may have been changed since.
        """
        recipe = self.recipe
        expected: list[tuple[Sequence[str], tuple[ColumnKind, ...]]] = [
            (recipe.numbers.names, _SCALARS),
            ([part.name for part in recipe.texts], (ColumnKind.TEXT,)),
            ([part.name for part in recipe.times], _TIMES),
            ([part.name for part in recipe.arrays], (ColumnKind.ARRAY,)),
        ]
        for names, kinds in expected:
            for name in names:
                own = columns[name].kind
                if own not in kinds:
                    raise DataError(
                        f'column "{name}" is of kind {own}, the model was trained on {_PLURALS[kinds[0]]}'
                    )

    @cached_property
    def _others(self) -> tuple[Texts | Times | Arrays, ...]:
        return (*self.recipe.texts, *self.recipe.times, *self.recipe.arrays)


def choose_features(
    described: Sequence[Column],
    target: str,
    features: Sequence[str] | None,
    exclude: Sequence[str] = (),
    options: FeatureOptions | None = None,
) -> tuple[str, ...]:
    """Return the columns to learn from.

    Without `features` these are all columns except the target, the excluded ones, primary keys and identity columns.
    Raises MissingError for an unknown column, RequestError for a contradiction, if no column is left, and for an
    option that does not apply to its column.
    """
    names = [column.name for column in described]
    for name in (target, *(features or ()), *exclude):
        if name not in names:
            detail = f"The table's columns are: {', '.join(names)}."
            raise MissingError(f'column "{name}" does not exist in the table', detail=detail)
    if features is not None:
        _check_feature_names(features, exclude)
        chosen = tuple(features)
    else:
        out = {target, *exclude}
        chosen = tuple(c.name for c in described if c.name not in out and not c.primary_key and not c.identity)
    check_features(target, chosen, "the table", names)
    if options is not None:
        options.check({column.name: column for column in described if column.name in chosen}, names)
    return chosen


def require_present(columns: Columns, features: Sequence[str], options: FeatureOptions, rows: Rows) -> None:
    """Raise DataError if one of `rows` lacks a required value.

    The message contains the row's position in the table.
    """
    for name in features:
        if options.missing_rule(name, columns[name].kind) == "error":
            require(name, columns[name].absent()[rows], rows)


def fit(
    columns: Columns,
    *,
    target: TargetEncoding,
    features: Sequence[str],
    options: FeatureOptions,
    train: Rows,
    input_shape: tuple[int, ...] | None = None,
) -> Preprocessor:
    """Fit means, scales and categories to the `train` rows. Without `input_shape` a row is flat.

    `choose_features` has checked the options. Raises DataError if every feature is constant, RequestError if the
    features do not fill `input_shape`.
    """
    learned = _TrainingRows(columns, features, train)
    scalars = [name for name in features if columns[name].kind in _SCALARS]
    texts = [
        Texts.fit(name, data, options.most_categories(name), options.missing_rule(name, data.kind))
        for name, data in _columns_of_kinds(learned, ColumnKind.TEXT)
    ]
    recipe = Recipe(
        format=FORMAT,
        features=tuple(features),
        numbers=_fit_numbers(learned, scalars, options),
        texts=tuple(text for text, _ in texts),
        times=tuple(
            Times.fit(name, data, options.missing_rule(name, data.kind))
            for name, data in _columns_of_kinds(learned, *_TIMES)
        ),
        arrays=tuple(
            Arrays.fit(
                name, data, standardize=options.standardizes(name), missing=options.missing_rule(name, data.kind)
            )
            for name, data in _columns_of_kinds(learned, ColumnKind.ARRAY)
        ),
        target=target,
        input_shape=(),
    )
    width = len(Preprocessor(recipe).outputs)
    shape = (width,) if input_shape is None else input_shape
    if int(np.prod(shape)) != width:
        raise RequestError(
            f"input_shape {list(shape)} holds {int(np.prod(shape))} numbers, the features give {width}",
            detail=f"The features are: {', '.join(features)}.",
        )
    fitted = Preprocessor(replace(recipe, input_shape=shape), tuple(facts for _, facts in texts))
    _require_different_rows(fitted, learned, features)
    return fitted


class _TrainingRows(Mapping[str, ColumnData]):
    """The training rows of the columns. A column's rows are copied on access.

    A copy of all columns at once would double the memory.
    """

    def __init__(self, columns: Columns, names: Sequence[str], rows: Rows) -> None:
        self._columns = {name: columns[name] for name in names}
        self._rows = rows

    def __getitem__(self, name: str) -> ColumnData:
        return self._columns[name].take(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def kind(self, name: str) -> ColumnKind:
        """Return the column's kind, without copying its rows."""
        return self._columns[name].kind

    def parts(self, step: int) -> Iterator[Columns]:
        """Yield the rows in order, in blocks of `step` rows."""
        for start in range(0, len(self._rows), step):
            part = self._rows[start : start + step]
            yield {name: data.take(part) for name, data in self._columns.items()}


def _columns_of_kinds(learned: "_TrainingRows", *kinds: ColumnKind) -> Iterator[tuple[str, ColumnData]]:
    return ((name, learned[name]) for name in learned if learned.kind(name) in kinds)


def _fit_numbers(learned: "_TrainingRows", names: Sequence[str], options: FeatureOptions) -> Numbers:
    # Booleans are 0 and 1, so they are not scaled.
    scaled = [options.standardizes(name) and learned.kind(name) is not ColumnKind.BOOLEAN for name in names]
    numbers = (learned[name].numbers() for name in names)
    return Numbers.fit(names, numbers, scaled, [options.missing_rule(name, learned.kind(name)) for name in names])


def _require_different_rows(fitted: Preprocessor, learned: "_TrainingRows", features: Sequence[str]) -> None:
    """Raise DataError if all training rows are equal.

    The rows are encoded in blocks, since the first block almost always contains different rows.
    """
    first: Tensor32 | None = None
    rows = 0
    for part in learned.parts(fitted.block_rows or _TRANSFORM_BLOCK_NUMBERS):
        x = fitted.transform(part)
        first = x[:1] if first is None else first
        rows += len(x)
        if (x != first).any():
            return
    raise DataError(
        f"every feature has one value in all {rows} training rows: there is nothing to learn from",
        detail=f"The features are: {', '.join(features)}.",
        hint="Add rows that differ, or name other columns with features => '{...}'.",
    )


def _check_feature_names(features: Sequence[str], exclude: Sequence[str]) -> None:
    for name in features:
        if features.count(name) > 1:
            raise RequestError(f'feature "{name}" is named {features.count(name)} times', hint="Name it once.")
        if name in exclude:
            raise RequestError(f'column "{name}" is both a feature and excluded', hint="Leave it out of one of them.")
