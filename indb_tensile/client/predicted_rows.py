"""The answers of a prediction: read one by one through a cursor on the server, or as columns of a frame."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Double, Select, Text, column, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.functions import Function

from indb_tensile.client.frame_columns import ROW_NUMBER, Frame, as_frame, make_frame
from indb_tensile.client.function_call import BOOLEAN, INTEGER, RELATION, TEXT, TEXTS, function_call
from indb_tensile.errors import RequestError

# Rows that one round trip fetches. The server computes as many as it is asked for, and holds no more.
FETCHED_ROWS = 2000
STREAMED = {"stream_results": True, "yield_per": FETCHED_ROWS}
_TYPES = {
    "model": TEXT,
    "relation": RELATION,
    "keys": TEXTS,
    "version": INTEGER,
    "with_probabilities": BOOLEAN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRow:
    """The answer for one row.

    `key` names the row: its primary key, or the columns of `keys`. `value` is the value of a regression, or a label
    that is a number. `label` is the label as text, None for a regression. `probabilities` are by label, and `targets`
    are the values of a regression of several targets.
    """

    key: Mapping[str, Any]
    value: float | None
    label: str | None
    probabilities: Mapping[str, float] | None = None
    targets: Any = None

    @property
    def prediction(self) -> Any:
        """Return the answer itself: targets, a value, or a label as the number, boolean or text that it is.

        >>> PredictedRow(key={"id": 1}, value=7.0, label="7").prediction
        7
        >>> PredictedRow(key={"id": 1}, value=1.0, label="true").prediction
        True
        >>> PredictedRow(key={"id": 1}, value=0.25, label=None).prediction
        0.25
        """
        if self.targets is not None:
            return self.targets
        if self.label is None:
            return self.value
        if self.value is None:
            return self.label
        if self.label in ("true", "false"):
            return self.label == "true"
        return int(self.value) if self.value.is_integer() else self.value


def prediction_statement(
    model: str, relation: str, *, keys: Sequence[str] | None, version: int | None, probabilities: bool
) -> Select[Any]:
    """Return the statement that predicts for all rows of a relation; its rows stream."""
    arguments = {
        "model": model,
        "relation": relation,
        "keys": None if keys is None else list(keys),
        "version": version,
        "with_probabilities": probabilities,
    }
    call: Function[Any] = function_call("tensile_predict_table", _TYPES, arguments, Text())
    rows = call.table_valued(
        column("key", JSONB),
        column("value", Double),
        column("label", Text),
        column("probabilities", JSONB),
        column("targets", JSONB),
    )
    return select(rows)


def source_keys(relation: object, keys: Sequence[str] | None) -> Sequence[str] | None:
    """Return the key columns to ask for: the number of a frame's row, and all columns of a query."""
    if as_frame(relation) is not None:
        return [ROW_NUMBER]
    if keys is None and hasattr(relation, "selected_columns"):
        return ["*"]
    return keys


def predicted_row(row: Sequence[Any]) -> PredictedRow:
    """Return the answer of one row of the statement."""
    key, value, label, probabilities, targets = row
    return PredictedRow(key=key, value=value, label=label, probabilities=probabilities, targets=targets)


class PredictedRows(Iterator[PredictedRow]):
    """An iterator of answers. It holds one connection until it is read to its end or closed.

    Use it in a `with` block, or call `close`, where it may not be read to its end.
    """

    def __init__(self, rows: Iterator[PredictedRow], close: Callable[[], None]) -> None:
        self._rows = rows
        self._close = close

    def __next__(self) -> PredictedRow:
        return next(self._rows)

    def close(self) -> None:
        """Give the connection back. Reading on ends at once."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncPredictedRows(AsyncIterator[PredictedRow]):
    """An asynchronous iterator of answers; otherwise as `PredictedRows`."""

    def __init__(self, rows: AsyncIterator[PredictedRow], close: Callable[[], Any]) -> None:
        self._rows = rows
        self._close = close

    async def __anext__(self) -> PredictedRow:
        return await anext(self._rows)

    async def aclose(self) -> None:
        """Give the connection back."""
        await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def answers_like(frame: Frame, rows: Iterable[PredictedRow], *, probabilities: bool) -> Any:
    """Return the answers for the rows of a frame, in its order, as a frame of its library with its index."""
    ordered = in_frame_order(rows, frame.rows)
    return frame.like(_answer_columns(ordered, probabilities=probabilities))


def in_frame_order(rows: Iterable[PredictedRow], count: int) -> list[PredictedRow]:
    """Return the answers for a numbered frame in the order of its rows."""
    ordered = sorted(rows, key=lambda row: int(row.key[ROW_NUMBER]))
    assert [int(row.key[ROW_NUMBER]) for row in ordered] == list(range(count))
    return ordered


def answers_frame(library: str, rows: Iterable[PredictedRow], *, probabilities: bool) -> Any:
    """Return the answers as a new frame of a library, with the columns of the keys."""
    predicted = list(rows)
    names = list(dict.fromkeys(name for row in predicted for name in row.key))
    answers = _answer_columns(predicted, probabilities=probabilities)
    for name in names:
        if name in answers:
            raise RequestError(
                f'the key column "{name}" has the name of an answer', hint="Name other columns in keys, or rename it."
            )
    return make_frame(library, {name: [row.key.get(name) for row in predicted] for name in names} | answers)


def probability_columns(rows: Sequence[PredictedRow]) -> dict[str, list[float]]:
    """Return the probabilities of each label, in the order in which the labels are sorted."""
    labels = sorted({label for row in rows for label in row.probabilities or {}})
    return {label: [(row.probabilities or {}).get(label, 0.0) for row in rows] for label in labels}


def _answer_columns(rows: Sequence[PredictedRow], *, probabilities: bool) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"prediction": [row.prediction for row in rows]}
    if probabilities:
        columns |= {f"probability_{label}": values for label, values in probability_columns(rows).items()}
    return columns
