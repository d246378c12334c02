"""Converts the rows of a prediction, which SQL sends as JSON objects, arrays or single values."""

import datetime
import math
import re
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError, RequestError
from indb_tensile.learning.decoding.copylabels import label_set
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind
from indb_tensile.request.image_rules import bytes_of_hex
from indb_tensile.request.time_texts import parse_interval, parse_time_of_day

AS_TRAINED = (
    "Give the column the type that it had when the model was trained, for example by a cast in a view, give NULL for "
    "what is not known, or train the model on the column as it is now."
)
_INFINITE = {"infinity": math.inf, "-infinity": -math.inf}
# PostgreSQL's years go from 4714 BC to 5874897, Python's from 1 to 9999; the calendar repeats every 400 years.
_WIDE_YEAR = re.compile(r"(?P<year>\d{4,})(?P<rest>-\d\d-\d\d.*?)(?P<before> BC)?")
_CYCLE_DAYS = 146_097
_DAY_ZERO = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)  # PostgreSQL's epoch
_DAY_ZERO_S = 946_684_800  # PostgreSQL's epoch in seconds since 1970
_DAY_S, _SECOND_US = 86_400, 1_000_000


class SqlRecord(dict[str, Any]):
    """A SQL record whose fields may have no names.

    PostgreSQL then names the fields f1, f2, and so on, in their order.
    """

    @property
    def fields(self) -> list[Any] | None:
        """Return the values in their order, or None if the record's fields have names of their own."""
        names = [f"f{place}" for place in range(1, len(self) + 1)]
        return [self[name] for name in names] if all(name in self for name in names) else None


def named(row: Any, names: Sequence[str], *, single_array: bool) -> dict[str, Any]:
    """Return a row as an object.

    The row is an object, an array of values in the order of the features, or the value of the only feature. Raises
    RequestError if a feature is missing or the number of values is wrong.
    """
    if isinstance(row, dict):
        absent = [name for name in names if name not in row]
        if not absent:
            return row
        fields = row.fields if isinstance(row, SqlRecord) else None
        if fields is not None:
            return _by_position(fields, names, single_array=single_array and len(fields) > 1)
        hint = f"The model's features are: {_listed(names)}. Give NULL for what is not known."
        raise RequestError(f"the row has no column {_listed(absent, 10)}", hint=hint)
    if isinstance(row, list):
        return _by_position(row, names, single_array=single_array)
    return _by_position([row], names, single_array=False)


def _by_position(values: list[Any], names: Sequence[str], *, single_array: bool) -> dict[str, Any]:
    """Assign values to the features in their order.

    With `single_array` the values are the elements of the only feature, an array.
    """
    if single_array and len(names) == 1:
        return {names[0]: values}
    if len(values) == len(names):
        return dict(zip(names, values, strict=True))
    count = f"{len(values)} values" if len(values) != 1 else "one value"
    hint = f"Give them in this order, or as a row or a jsonb object with these names: {_listed(names)}."
    raise RequestError(
        f"{count} given for the model's {len(names)} feature{'' if len(names) == 1 else 's'}", hint=hint
    )


def _listed(names: Sequence[str], most: int = 50) -> str:
    """Return the first `most` names as a list for a message, with the number of further names."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def column_of(name: str, kind: ColumnKind, values: Sequence[Any]) -> ColumnData:
    """Convert JSON values to one column; null is missing.

    A column of integers becomes a column of floats if a value is no integer of 64 bits. Raises DataError for a value
    of another kind.
    """
    missing = np.fromiter((value is None for value in values), np.bool_, len(values))
    match kind:
        case ColumnKind.TEXT:
            texts = np.empty(len(values), object)
            texts[:] = [None if value is None else text(name, value) for value in values]
            return ColumnData(kind=kind, values=texts, missing=missing)
        case ColumnKind.IMAGE:
            images = np.empty(len(values), object)
            images[:] = [None if value is None else _bytes(name, value) for value in values]
            return ColumnData(kind=kind, values=images, missing=missing)
        case ColumnKind.ARRAY:
            return ColumnData(kind=kind, values=_tensors(name, values), missing=missing)
        case ColumnKind.LABELS:
            sets = np.empty(len(values), object)
            sets[:] = [None if value is None else _labels(name, value) for value in values]
            return ColumnData(kind=kind, values=sets, missing=missing)
        case ColumnKind.DATE | ColumnKind.TIME | ColumnKind.CLOCK | ColumnKind.DURATION:
            seconds_of = {ColumnKind.CLOCK: time_of_day, ColumnKind.DURATION: duration}.get(kind, moment)
            seconds = np.array([seconds_of(name, value) for value in values], np.float64)
            return ColumnData(kind=kind, values=seconds, missing=missing)
        case ColumnKind.INTEGER if all(value is None or _is_int8(value) for value in values):
            # Not converted through a double, which has only 53 bits of precision for a label.
            integers = np.array([0 if value is None else value for value in values], np.int64)
            return ColumnData(kind=kind, values=integers, missing=missing)
        case ColumnKind.INTEGER:
            return column_of(name, ColumnKind.FLOAT, values)
        case _:
            numbers = np.array([number(name, value) for value in values], np.float64)
            dtype = np.bool_ if kind is ColumnKind.BOOLEAN else np.float64
            known = np.where(missing, 0.0, numbers)
            return ColumnData(kind=kind, values=known.astype(dtype), missing=missing)


def _is_int8(value: Any) -> bool:
    return isinstance(value, int) and -(2**63) <= value < 2**63


def number(name: str, value: Any) -> float:
    """Convert a JSON number, boolean or numeric text; NaN for null, infinity beyond double precision."""
    if value is None:
        return math.nan
    if isinstance(value, int | float | str):
        try:
            return float(value)
        except OverflowError:
            return _infinity(value)
        except ValueError:
            pass
    raise DataError(f'column "{name}": {_abbreviated(value)} is not a number', hint=AS_TRAINED)


def truth(name: str, value: Any) -> float:
    """Return 1 for a true value or a number other than 0, else 0; NaN for null."""
    converted = number(name, value)
    return converted if math.isnan(converted) else float(converted != 0.0)


def single(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Round to single precision, as PostgreSQL stores a value of type real."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(np.float64)


def moment(name: str, value: Any) -> float:
    """Return the seconds since 1970 of an ISO date or timestamp, in UTC if it has no zone; NaN for null."""
    if value is None:
        return math.nan
    if isinstance(value, str):
        if value in _INFINITE:
            return _INFINITE[value]
        try:
            return _seconds(value)
        except ValueError:
            pass
        if match := _WIDE_YEAR.fullmatch(value):
            year = 1 - int(match["year"]) if match["before"] else int(match["year"])
            cycles, year_of_cycle = divmod(year - 2000, 400)
            try:
                return _seconds(f"{2000 + year_of_cycle}{match['rest']}", cycles * _CYCLE_DAYS)
            except ValueError:
                pass
    raise DataError(f'column "{name}": {_abbreviated(value)} is not a date or timestamp in ISO form', hint=AS_TRAINED)


def time_of_day(name: str, value: Any) -> float:
    """Return the seconds since midnight of a time of day, in UTC if it has a zone; NaN for null."""
    return _parsed(name, value, parse_time_of_day, "a time of day such as 18:30:00")


def duration(name: str, value: Any) -> float:
    """Return the seconds of an interval in any of PostgreSQL's styles; NaN for null."""
    return _parsed(name, value, parse_interval, "an interval such as 1 day 02:00:00")


def _parsed(name: str, value: Any, parse: Callable[[str], float], wanted: str) -> float:
    if value is None:
        return math.nan
    try:
        return parse(value)
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise DataError(f'column "{name}": {_abbreviated(value)} is not {wanted}', hint=AS_TRAINED) from None


def _seconds(iso: str, days: int = 0) -> float:
    """Return the seconds since 1970 of a time that is `days` days after `iso`.

    The result is rounded exactly as values that were read from a table are.
    """
    parsed = datetime.datetime.fromisoformat(iso)
    elapsed = (parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)) - _DAY_ZERO
    days += elapsed.days
    if ":" not in iso:  # a date
        return float(days * _DAY_S) + _DAY_ZERO_S
    return ((days * _DAY_S + elapsed.seconds) * _SECOND_US + elapsed.microseconds) * 1e-6 + _DAY_ZERO_S


def text(name: str, value: Any) -> str:
    """Return a scalar of JSON as PostgreSQL's text output writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        raise DataError(f'column "{name}": {_abbreviated(value)} is not a text', hint=AS_TRAINED)
    return _UNSTORABLE.sub("\ufffd", str(value))


# Type json accepts escapes of these characters in a text, and no text of PostgreSQL can have them.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def _bytes(name: str, value: Any) -> bytes:
    """Return the bytes of a bytea, which JSON holds as its text in hexadecimal."""
    raw = bytes_of_hex(value)
    if raw is None:
        raise DataError(f'column "{name}": {_abbreviated(value)} is not a bytea in hexadecimal', hint=AS_TRAINED)
    return raw


def _labels(name: str, value: Any) -> tuple[str, ...]:
    """Return the labels of an array, whose dimensions mean nothing."""
    if not isinstance(value, list):
        raise DataError(f'column "{name}": {_abbreviated(value)} is not an array', hint=AS_TRAINED)
    return label_set(text(name, item) for item in _flat(value) if item is not None)


def _flat(values: list[Any]) -> Iterator[Any]:
    for item in values:
        if isinstance(item, list):
            yield from _flat(item)
        else:
            yield item


def _tensors(name: str, values: Sequence[Any]) -> npt.NDArray[np.float64]:
    arrays = [None if value is None else _tensor(name, value) for value in values]
    shape = next((array.shape for array in arrays if array is not None), (0,))
    stacked = np.zeros((len(values), *shape))
    for position, array in enumerate(arrays):
        if array is None:
            continue
        if array.shape != shape:
            raise DataError(
                f'column "{name}": an array of shape {array.shape} beside one of shape {shape}', hint=AS_TRAINED
            )
        stacked[position] = array
    return stacked


def _tensor(name: str, value: Any) -> npt.NDArray[np.float64]:
    if isinstance(value, str) and value.startswith("["):
        value = _vector(name, value)
    if not isinstance(value, list):
        raise DataError(f'column "{name}": {_abbreviated(value)} is not an array', hint=AS_TRAINED)
    try:
        array = np.asarray(value, np.float64)
    except OverflowError:
        return _tensor(name, _with_infinities(value))
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(
            f'column "{name}": {_abbreviated(value)} is not an array of numbers of one shape', hint=AS_TRAINED
        ) from error
    if np.isnan(array).any() and _has_null(value):
        hint = "Replace the NULL elements, or give NULL for the whole array to count it as missing."
        raise DataError(f'column "{name}": the array contains NULL', hint=hint)
    return array


def _vector(name: str, text: str) -> list[float]:
    """Read a vector of pgvector, which JSON holds as its text: [1,2,3]."""
    try:
        return [float(np.float32(number)) for number in text[1:-1].split(",")]
    except ValueError:
        raise DataError(f'column "{name}": {_abbreviated(text)} is not a vector', hint=AS_TRAINED) from None


def _has_null(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(_has_null(item) for item in value))


def _with_infinities(value: Any) -> Any:
    """Return the array with infinities in place of integers beyond double precision."""
    if isinstance(value, list):
        return [_with_infinities(item) for item in value]
    try:
        return float(value) if isinstance(value, int) else value
    except OverflowError:
        return _infinity(value)


def _infinity(value: Any) -> float:
    return math.inf if value > 0 else -math.inf


def _abbreviated(value: Any) -> str:
    """Return a value for a message, abbreviated if it is long. Only the beginning of a long value is formatted."""
    text = _repr.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_repr = reprlib.Repr()
_repr.maxlist = _repr.maxdict = 60
_repr.maxstring = _repr.maxlong = 120
