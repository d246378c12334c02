"""Predicts the rows of a block of a relation, and says which row a model refuses."""

import math
import re
from collections.abc import Iterator, Sequence

from indb_tensile.errors import RequestError
from indb_tensile.learning.decoding.copybinary import Fields, SegmentDecoder
from indb_tensile.learning.decoding.copyrows import Segment, grouped
from indb_tensile.learning.evaluation.input_bins import InputCounter
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.relation.relation_scan import ScannedColumns
from indb_tensile.learning.storage.columns import ColumnData

from .answer_rows import AnswerRows, joined, key_cells, parts_of

# Rows computed at a time, so that memory does not depend on the size of a block: encoded features, and the text and
# the objects of a probability, which take as much as 16 numbers.
_MOST_ROWS = 4096
_MOST_NUMBERS = 1 << 23
_PROBABILITY_NUMBERS = 16

# A row number in a message counts within one block.
_OWN_ROW = re.compile(r", row \d+(?=:)| in row \d+$")


class BlockPredictor:
    """Turns segments of rows into rows of COPY's binary format. `columns` are those that follow the keys.

    `inputs` counts the rows by the bins of their inputs.
    """

    def __init__(
        self,
        predictor: ModelPredictor,
        fields: Fields,
        scanned: ScannedColumns,
        *,
        with_probabilities: bool,
        inputs: InputCounter | None = None,
    ) -> None:
        self._inputs = inputs
        self._predictor = predictor
        self._decoder = SegmentDecoder(fields)
        self._key_fields = scanned.key_fields
        self._keys = scanned.keys
        self._answers = AnswerRows(predictor, with_probabilities=with_probabilities)
        width = math.prod(predictor.preprocessor.input_shape)
        if with_probabilities:
            width += _PROBABILITY_NUMBERS * len(predictor.labels)
        self._most_rows = max(1, min(_MOST_ROWS, _MOST_NUMBERS // width))

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of the answers."""
        return self._answers.columns

    def blocks(self, segments: Sequence[Segment], rows_before: int) -> Iterator[tuple[int, bytes]]:
        """Yield the number of rows and their encoding for each group of rows of one layout.

        Raises RequestError for a row that the model refuses, with its number in the relation.
        """
        for group in grouped(segments, self._most_rows):
            yield from self._predicted(group, rows_before)
            rows_before += sum(segment.rows for segment in group)

    def _predicted(self, segments: Sequence[Segment], rows_before: int) -> Iterator[tuple[int, bytes]]:
        columns, rows = self._decoder.decode(segments)
        try:
            outputs = self._predictor.outputs(self._predictor.preprocessor.transform(columns))
        except RequestError as error:
            raise self._located(error, columns, rows, rows_before) from None
        if self._inputs is not None:
            self._inputs.add(columns)
        answers = self._answers.encode(outputs)
        fields = len(self._key_fields) + len(self.columns)
        begin = 0
        for segment in segments:
            end = begin + segment.rows
            keys = [key_cells(segment, field) for field in self._key_fields]
            yield segment.rows, joined([*keys, *parts_of(answers, begin, end)], segment.rows, fields)
            begin = end

    def _located(
        self, refusal: RequestError, columns: dict[str, ColumnData], rows: int, rows_before: int
    ) -> RequestError:
        """Return the error with the number of the first row at fault, which is found by halving."""
        begin, end = 0, rows
        while end - begin > 1:
            middle = (begin + end) // 2
            error = self._error_of(columns, begin, middle)
            begin, end = (begin, middle) if error is not None else (middle, end)
        # The last half may be valid by itself: arrays of two shapes are refused only together.
        refusal = self._error_of(columns, begin, end) or refusal
        refusal.message = f"row {rows_before + begin + 1} of the relation: {_OWN_ROW.sub('', refusal.message)}"
        shown = ", ".join(f'"{name}" is {columns[name].values[begin]}' for name in self._keys if name in columns)
        refusal.detail = refusal.detail or (
            f"In this row {shown}." if shown else "Rows are counted as they are stored."
        )
        return refusal

    def _error_of(self, columns: dict[str, ColumnData], begin: int, end: int) -> RequestError | None:
        try:
            self._predictor.preprocessor.transform({name: data.part(begin, end) for name, data in columns.items()})
        except RequestError as error:
            return error
        return None
