"""Encodes answers as rows of COPY's binary format: the columns of the key as they were read, then the answer.

A key is never decoded. Its bytes, with the length before them, are copied from the row that was read to the one that
is written. Rows of equal lengths are joined by numpy, others by a loop.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from indb_tensile.job import Task
from indb_tensile.learning.decoding.copybinary import SIGNATURE
from indb_tensile.learning.decoding.copyrows import Run, Segment
from indb_tensile.learning.encoding.label_texts import label_sets
from indb_tensile.learning.evaluation.model_metrics import label_probabilities, probabilities
from indb_tensile.learning.evaluation.probability_texts import probability_texts, value_texts
from indb_tensile.learning.models.model_predictor import ModelPredictor

HEADER = SIGNATURE + bytes(8)
TRAILER = b"\xff\xff"

# One field of each row, with its length: of equal widths as (rows, width), or of any.
Cells = npt.NDArray[np.uint8] | list[bytes]

_LENGTH_BYTES = 4
_NULL = b"\xff\xff\xff\xff"
_JSONB_VERSION = b"\x01"
_NUMBER = np.dtype([("length", ">i4"), ("value", ">f8")])


class AnswerRows:
    """Encodes the answers of one version. `fields` is the number of fields that follow the keys."""

    def __init__(self, predictor: ModelPredictor, *, with_probabilities: bool) -> None:
        self._target = predictor.preprocessor.target
        self._task = predictor.task
        self._skips = predictor.preprocessor.skips
        self._with_probabilities = with_probabilities and predictor.task not in (
            Task.REGRESSION,
            Task.ANOMALY,
            Task.PAIRS,
        )
        if predictor.task is Task.CLASSIFICATION:
            self._classes = _classes(self._target.names, self._target.numbers)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of the answer that are written. The others are NULL."""
        if self._task in (Task.REGRESSION, Task.PAIRS):
            return ("targets",) if self._target.values else ("value",)
        own = ("label",) if self._task is Task.MULTILABEL else ("value", "label")
        return (*own, "probabilities") if self._with_probabilities else own

    def encode(self, outputs: npt.NDArray[np.float32]) -> list[Cells]:
        """Return the fields of the answers for the network's outputs; a cell may hold several fields.

        A row whose image cannot be read has NULL in all fields, if the model skips such rows.
        """
        unreadable = np.flatnonzero(np.isnan(outputs[:, 0])) if self._skips else np.zeros(0, np.int64)
        if not len(unreadable):
            return self._encode(outputs)
        known = outputs.copy()
        known[unreadable] = 0.0
        return [
            self._with_nulls(cells, place, unreadable.tolist()) for place, cells in enumerate(self._encode(known))
        ]

    def _with_nulls(self, cells: Cells, place: int, rows: Sequence[int]) -> Cells:
        fields = (
            2 if self._task in (Task.CLASSIFICATION, Task.ANOMALY) and place == 0 else 1
        )  # value and label share a cell
        pieces = list(_pieces(cells))
        for row in rows:
            pieces[row] = fields * _NULL
        return pieces

    def _encode(self, outputs: npt.NDArray[np.float32]) -> list[Cells]:
        if self._target.values:
            return [[_sized_json(text) for text in value_texts(self._target, self._target.restore(outputs))]]
        if self._task is Task.MULTILABEL:
            sets: list[Cells] = [[_sized(text.encode()) for text in label_sets(self._target.names, outputs)]]
            return (
                [*sets, self._probability_cells(label_probabilities(outputs))] if self._with_probabilities else sets
            )
        if self._task in (Task.REGRESSION, Task.PAIRS):
            numbers = np.empty(len(outputs), _NUMBER)
            numbers["length"], numbers["value"] = 8, self._target.restore(outputs)
            return [numbers.view(np.uint8).reshape(len(outputs), _NUMBER.itemsize)]
        if self._target.anomaly is not None:
            scores = self._target.anomaly.scores(outputs)
            flags = [_sized(self._target.names[int(flag)].encode()) for flag in self._target.anomaly.flags(scores)]
            return [[_number(score) + flag for score, flag in zip(scores.tolist(), flags, strict=True)]]
        places = outputs.argmax(axis=1)
        classes = self._classes
        best = classes[places] if isinstance(classes, np.ndarray) else [classes[place] for place in places.tolist()]
        if not self._with_probabilities:
            return [best]
        return [best, self._probability_cells(probabilities(outputs))]

    def _probability_cells(self, chances: npt.NDArray[np.float64]) -> list[bytes]:
        return [_sized_json(text) for text in probability_texts(self._target.names, chances)]


def key_cells(segment: Segment, field: int) -> Cells:
    """Return a field of each row of a segment, as it was read."""
    starts, lengths = segment.spans(field)
    first_bytes = max(int(lengths[0]), 0)
    width = _LENGTH_BYTES + first_bytes
    if isinstance(segment, Run):
        at = segment.starts[field] - _LENGTH_BYTES
        return np.ndarray((segment.rows, width), np.uint8, segment.data, at, (segment.stride_bytes, 1))
    if (lengths == lengths[0]).all():
        cells: npt.NDArray[np.uint8] = np.frombuffer(segment.data, np.uint8)[
            (starts - _LENGTH_BYTES)[:, None] + np.arange(width)
        ]
        return cells
    view = memoryview(segment.data)
    ends = (starts + np.maximum(lengths, 0)).tolist()
    return [bytes(view[start - _LENGTH_BYTES : end]) for start, end in zip(starts.tolist(), ends, strict=True)]


def joined(cells: Sequence[Cells], rows: int, fields: int) -> bytes:
    """Return rows of `fields` fields each, from the cells of their fields in order."""
    count = np.broadcast_to(np.frombuffer(fields.to_bytes(2, "big"), np.uint8), (rows, 2))
    parts = [count, *cells]
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.hstack([np.asarray(part) for part in parts]).tobytes()
    return b"".join(piece for row in zip(*map(_pieces, parts), strict=True) for piece in row)


def parts_of(cells: Sequence[Cells], begin: int, end: int) -> list[Cells]:
    """Return the cells of some rows."""
    return [part[begin:end] for part in cells]


def _pieces(cells: Cells) -> Iterator[bytes]:
    if isinstance(cells, list):
        return iter(cells)
    width, data = cells.shape[1], cells.tobytes()
    return (data[at : at + width] for at in range(0, len(data), width))


def _classes(names: Sequence[str], numbers: Sequence[float] | None) -> Cells:
    """Return value and label of each class, in an array if all have one width."""
    values = [_NULL] * len(names) if numbers is None else [_number(number) for number in numbers]
    cells = [value + _sized(name.encode()) for value, name in zip(values, names, strict=True)]
    if len(set(map(len, cells))) == 1:
        return np.frombuffer(b"".join(cells), np.uint8).reshape(len(cells), -1)
    return cells


def _number(value: float) -> bytes:
    return np.array([(8, value)], _NUMBER).tobytes()


def _sized_json(text: str) -> bytes:
    return _sized(_JSONB_VERSION + text.encode())


def _sized(value: bytes) -> bytes:
    return len(value).to_bytes(_LENGTH_BYTES, "big") + value
