"""The rows of a table as series: values on a grid of equal steps, gaps filled from the past alone."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError, MissingError
from indb_tensile.learning.forecasting.time_steps import TimeSteps, detected_steps, requested_steps
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, Columns

Matrix = npt.NDArray[np.float64]
_SPARSEST = 100  # if a grid has more steps than this for each row, its step is too short for the rows
_FEW_STEPS = 100_000  # a grid of at most so many steps is never too long
_LARGEST = 1e30
_FEWEST_TIMES = 3  # times that a series must have to tell the step by their distances


@dataclass(frozen=True, kw_only=True)
class SeriesColumns:
    """The columns of a forecast by role, and how times become steps. `kinds` has the kind of each column."""

    time: str
    targets: tuple[str, ...]
    series: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    kinds: dict[str, ColumnKind] = field(default_factory=dict)
    gaps: str = "previous"
    duplicates: str = "error"

    @property
    def names(self) -> tuple[str, ...]:
        """Return all columns, each once."""
        named = (self.time, *self.series, *self.targets, *self.observed, *self.known, *self.static)
        return tuple(dict.fromkeys(named))

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the columns whose past values are in a window: the targets first."""
        return (*self.targets, *self.observed)


@dataclass(frozen=True, kw_only=True, eq=False)
class SeriesGrid:
    """Series on one grid of steps, one after another.

    Series `s` has the places from `offsets[s]` to `offsets[s + 1]`; the first is step `starts[s]`. Its first
    `lengths[s]` steps are its history; the steps after them have known columns alone. `values` are those of the
    channels, without gaps, and `present` says which of them the table has. `known` has NaN where the table has no
    value. `static` are the static columns, with a row for each series. `last_times` are the times of the last steps
    of the histories, in seconds or as numbers.
    """

    keys: tuple[tuple[Any, ...], ...]
    starts: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    values: Matrix
    present: npt.NDArray[np.bool_]
    known: Matrix
    static: dict[str, ColumnData]
    last_times: Matrix
    filled: int = 0

    def __len__(self) -> int:
        return len(self.keys)

    def title(self, series: int, columns: SeriesColumns) -> str:
        """Name a series for a message."""
        return series_title(self.keys[series], columns)


def series_title(key: Sequence[Any], columns: SeriesColumns) -> str:
    """Name a series for a message, as in: series (store 7, item "a")."""
    if not columns.series:
        return "the series"
    named = zip(columns.series, key, strict=True)
    return f"series ({', '.join(f'{name} {json.dumps(value, ensure_ascii=False)}' for name, value in named)})"


def steps_of(columns: SeriesColumns, data: Columns, form: str, step: str | None, zone: str | None) -> TimeSteps:
    """Return the steps that a request names, or those of the series with the most different times."""
    if step is not None:
        return requested_steps(step, form, zone, truncates=columns.duplicates != "error")
    codes, _ = _series_codes(columns, data)
    times = data[columns.time].numbers()
    require_times(columns, data)
    largest = int(np.argmax(np.bincount(codes)))
    distinct = np.unique(times[codes == largest])
    if len(distinct) < _FEWEST_TIMES:
        raise DataError(
            f"no series has {_FEWEST_TIMES} different times, from which the step could be told",
            hint='Add rows, name the columns that tell the series apart in "series", or give "step".',
        )
    return detected_steps(distinct, form, zone)


def require_times(columns: SeriesColumns, data: Columns) -> None:
    """Refuse rows without a time, and without a value that tells their series."""
    for name in (columns.time, *columns.series):
        column = data[name]
        absent = column.absent()
        if absent.any():
            role = "the time of the series" if name == columns.time else "tells the series apart"
            raise DataError(
                f'column "{name}" is NULL or infinite in {int(absent.sum())} of {len(absent)} rows, and it {role}'
                if name != columns.time
                else f'column "{name}", {role}, is NULL or infinite in {int(absent.sum())} of {len(absent)} rows',
                hint="Fill it, or leave these rows out with a view or with tensile_train_query.",
            )


def make_grid(columns: SeriesColumns, data: Columns, steps: TimeSteps) -> SeriesGrid:
    """Return the rows as series. Raises DataError for what no rule of the request handles, by series and time."""
    absent = [name for name in columns.names if name not in data]
    if absent:
        raise MissingError(f"the model needs column {', '.join(absent)}, which the rows do not have")
    require_times(columns, data)
    codes, keys = _series_codes(columns, data)
    times = data[columns.time].numbers()
    numbers = steps.numbers(times)
    order = np.lexsort((np.arange(len(codes)), times, numbers, codes))
    rows = _OrderedRows(
        codes=codes[order],
        numbers=numbers[order],
        times=times[order],
        channels=_matrix(columns, columns.channels, data, order),
        known=_matrix(columns, columns.known, data, order),
    )
    rows = _without_duplicates(rows, columns, keys, steps)
    return _placed(columns, steps, keys, rows, _static(columns, data))


@dataclass(frozen=True, kw_only=True, eq=False)
class _OrderedRows:
    """Rows by series and step: the number of its series and of its step, its time, and its values."""

    codes: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    times: Matrix
    channels: Matrix
    known: Matrix

    def take(self, chosen: npt.NDArray[np.bool_]) -> "_OrderedRows":
        """Return the rows for which `chosen` is true."""
        return _OrderedRows(
            codes=self.codes[chosen],
            numbers=self.numbers[chosen],
            times=self.times[chosen],
            channels=self.channels[chosen],
            known=self.known[chosen],
        )


def _without_duplicates(
    rows: _OrderedRows, columns: SeriesColumns, keys: list[tuple[Any, ...]], steps: TimeSteps
) -> _OrderedRows:
    """Combine rows of the same series and step as the request says, or refuse them."""
    codes, numbers = rows.codes, rows.numbers
    first = np.concatenate([[True], (codes[1:] != codes[:-1]) | (numbers[1:] != numbers[:-1])])[: len(codes)]
    if first.all():
        return rows
    if columns.duplicates == "error":
        _refuse_duplicate(int(np.argmin(first)), codes, keys, columns, rows.times, steps)
    channels, known = (_combined(own, first, columns.duplicates) for own in (rows.channels, rows.known))
    return _OrderedRows(
        codes=codes[first], numbers=numbers[first], times=rows.times[first], channels=channels, known=known
    )


def _placed(
    columns: SeriesColumns,
    steps: TimeSteps,
    keys: list[tuple[Any, ...]],
    rows: _OrderedRows,
    static: dict[str, ColumnData],
) -> SeriesGrid:
    """Return the grid of rows that differ in their steps."""
    starts, lasts = _histories(columns, rows, len(keys))
    empty = lasts < starts
    if empty.any():
        kept = np.flatnonzero(~empty)
        rows = rows.take(~empty[rows.codes])
        rows = replace(rows, codes=(np.cumsum(~empty) - 1)[rows.codes])
        starts, lasts = starts[kept], lasts[kept]
        keys, static = [keys[place] for place in kept.tolist()], {n: own.take(kept) for n, own in static.items()}
    rows = rows.take(rows.numbers >= starts[rows.codes])
    ends = np.full(len(keys), np.iinfo(np.int64).min)
    np.maximum.at(ends, rows.codes, rows.numbers)
    spans = ends - starts + 1
    _refuse_sparse(columns, steps, keys, spans, np.bincount(rows.codes, minlength=len(keys)))
    offsets = np.concatenate([[0], np.cumsum(spans)])
    places = offsets[rows.codes] + rows.numbers - starts[rows.codes]
    values = np.full((offsets[-1], rows.channels.shape[1]), np.nan)
    values[places] = rows.channels
    on_grid = np.full((offsets[-1], rows.known.shape[1]), np.nan)
    on_grid[places] = rows.known
    last_times = np.empty(len(keys))
    is_last = rows.numbers == lasts[rows.codes]
    last_times[rows.codes[is_last]] = rows.times[is_last]
    grid = SeriesGrid(
        keys=tuple(keys),
        starts=starts,
        offsets=offsets,
        lengths=lasts - starts + 1,
        values=values,
        present=np.isfinite(values),
        known=on_grid,
        static=static,
        last_times=last_times,
    )
    history = np.arange(offsets[-1]) - np.repeat(offsets[:-1], spans) < np.repeat(grid.lengths, spans)
    missing = history & ~grid.present[:, : len(columns.targets)].all(axis=1)
    if missing.any() and columns.gaps == "error":
        _refuse_gap(missing, grid, columns, steps)
    _fill(values, grid.present, offsets, columns.gaps)
    return replace(grid, filled=int(missing.sum()))


def _histories(
    columns: SeriesColumns, rows: _OrderedRows, count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the first and the last step of each series that has a value of the target.

    In a series without any, the last step is before the first one. Raises DataError if that is so of all series.
    """
    has_target = np.isfinite(rows.channels[:, : len(columns.targets)]).any(axis=1)
    starts, lasts = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(starts, rows.codes[has_target], rows.numbers[has_target])
    np.maximum.at(lasts, rows.codes[has_target], rows.numbers[has_target])
    if (lasts < starts).all() and count:
        raise DataError(
            f'target "{columns.targets[0]}" has no value to learn or forecast from in {len(rows.codes)} rows',
            hint="Fill it, name another column with target => '...', or give a later origin to forecast from.",
        )
    return starts, lasts


def _refuse_gap(missing: npt.NDArray[np.bool_], grid: SeriesGrid, columns: SeriesColumns, steps: TimeSteps) -> None:
    """Refuse the first step of a history that has no value of every target."""
    place = int(np.argmax(missing))
    series = int(np.searchsorted(grid.offsets, place, "right")) - 1
    back = np.array([grid.lengths[series] - 1 - (place - grid.offsets[series])])
    time = steps.texts(steps.times(grid.last_times[series : series + 1], -back))[0]
    raise DataError(
        f'{grid.title(series, columns)} has no value of "{columns.targets[0]}" at {time}',
        detail=f"{int(missing.sum())} steps have none.",
        hint='Add the rows, or have gaps filled: forecast => \'{"gaps": "previous", ...}\' or "zero".',
    )


def _fill(values: Matrix, present: npt.NDArray[np.bool_], offsets: npt.NDArray[np.int64], rule: str) -> None:
    """Fill gaps in place: with the value before them in the same series, or with 0."""
    if rule == "zero":
        values[~present] = 0.0
        return
    first = np.zeros(len(values), np.int64)
    first[offsets[1:-1]] = offsets[1:-1]
    first = np.maximum.accumulate(first)
    places = np.arange(len(values))
    for channel in range(values.shape[1]):
        latest = np.maximum.accumulate(np.where(present[:, channel], places, first))
        column = values[:, channel]
        values[:, channel] = np.nan_to_num(column[latest], nan=0.0)


def filled_known(grid: SeriesGrid) -> Matrix:
    """Return the known columns with gaps filled by the value before them; 0 before the first one."""
    known = grid.known.copy()
    _fill(known, np.isfinite(known), grid.offsets, "previous")
    return known


def _series_codes(columns: SeriesColumns, data: Columns) -> tuple[npt.NDArray[np.int64], list[tuple[Any, ...]]]:
    """Return the number of each row's series, and the values that name each series, in their order."""
    rows = len(data[columns.time].missing)
    if not columns.series:
        return np.zeros(rows, np.int64), [()]
    codes = np.zeros(rows, np.int64)
    for name in columns.series:
        values = np.asarray(data[name].values[:])
        _, own = np.unique(values.astype(str) if values.dtype == object else values, return_inverse=True)
        _, codes = np.unique(codes * (int(own.max(initial=0)) + 1) + own, return_inverse=True)
    _, firsts = np.unique(codes, return_index=True)
    picked = [_key_values(name, data[name].take(firsts)) for name in columns.series]
    return codes.astype(np.int64), list(zip(*picked, strict=True))


def _key_values(name: str, data: ColumnData) -> list[Any]:
    """Return values as JSON has them."""
    if data.kind is ColumnKind.DATE:
        return [str(np.datetime64(int(second), "s").astype("datetime64[D]")) for second in data.values.tolist()]
    return list(data.values.tolist())


def _matrix(columns: SeriesColumns, names: Sequence[str], data: Columns, order: npt.NDArray[np.int64]) -> Matrix:
    """Return columns of numbers, NaN where missing, in this order of rows. Refuses infinite values."""
    matrix = np.empty((len(order), len(names)))
    for place, name in enumerate(names):
        numbers = data[name].numbers()
        infinite = np.isinf(numbers)
        if infinite.any():
            raise DataError(
                f'column "{name}" is infinite in {int(infinite.sum())} rows',
                hint="Set these values to NULL: they are then gaps of the series.",
            )
        largest = float(np.nanmax(np.abs(numbers), initial=0.0))
        if largest > _LARGEST:
            raise DataError(
                f'column "{name}" reaches {largest:g}, too large for single precision',
                hint="Scale the values in SQL, as in a generated column, and name that one.",
            )
        matrix[:, place] = numbers[order]
    return matrix


def _combined(values: Matrix, first: npt.NDArray[np.bool_], rule: str) -> Matrix:
    """Return the mean or the sum of the known values of the rows of one step."""
    groups = np.flatnonzero(first)
    finite = np.isfinite(values)
    if not values.shape[1]:
        return values[first]
    sums = np.add.reduceat(np.where(finite, values, 0.0), groups, axis=0)
    counts = np.add.reduceat(finite.astype(np.int64), groups, axis=0)
    combined = sums / np.maximum(counts, 1) if rule == "mean" else sums
    return np.where(counts > 0, combined, np.nan)


def _static(columns: SeriesColumns, data: Columns) -> dict[str, ColumnData]:
    """Return the static columns with a row for each series. Refuses a column that changes within a series."""
    if not columns.static:
        return {}
    codes, keys = _series_codes(columns, data)
    static = {}
    for name in columns.static:
        column = data[name]
        present = np.flatnonzero(~column.missing)
        firsts = np.full(len(keys), -1)
        firsts[codes[present][::-1]] = present[::-1]
        expected = column.values[:][np.maximum(firsts, 0)][codes]
        differs = (np.asarray(column.values[:]) != expected) & ~column.missing
        if differs.any():
            series = int(codes[np.argmax(differs)])
            raise DataError(
                f'column "{name}" has several values in {series_title(keys[series], columns)}, and is static',
                hint='Name it in "known" if its future values are known, or in "observed" if only its past ones are.',
            )
        missing = firsts < 0
        static[name] = ColumnData(kind=column.kind, values=column.values[:][np.maximum(firsts, 0)], missing=missing)
    return static


def _refuse_duplicate(
    row: int,
    codes: npt.NDArray[np.int64],
    keys: list[tuple[Any, ...]],
    columns: SeriesColumns,
    times: Matrix,
    steps: TimeSteps,
) -> None:
    raise DataError(
        f"{series_title(keys[int(codes[row])], columns)} has several rows at {steps.texts(times[row : row + 1])[0]}",
        detail=f"A step is {steps.text}.",
        hint='Name all columns that tell series apart in "series", or combine the rows: '
        'forecast => \'{"duplicates": "sum", ...}\' or "mean".',
    )


def _refuse_sparse(
    columns: SeriesColumns,
    steps: TimeSteps,
    keys: list[tuple[Any, ...]],
    spans: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
) -> None:
    """Refuse a step that is so short that the grid would nearly be empty."""
    total = int(spans.sum())
    if total <= max(_FEW_STEPS, _SPARSEST * int(rows.sum())):
        return
    worst = int(np.argmax(spans))
    raise DataError(
        f"{series_title(keys[worst], columns)} has {int(rows[worst])} rows in {int(spans[worst])} steps "
        f"of {steps.text}",
        detail="Nearly all steps would be gaps.",
        hint='Give a longer step: forecast => \'{"step": "1 day", "duplicates": "mean", ...}\'.',
    )
