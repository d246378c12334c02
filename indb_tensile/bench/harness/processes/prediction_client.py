"""The rival of tensile_predict_table: a client that reads a table by COPY, predicts, and copies the results back."""

from collections.abc import Iterator, Sequence

import numpy as np
from psycopg import sql

from indb_tensile.catalog.connection import Connection
from indb_tensile.learning.decoding.copybinary import BLOCK_BYTES, SIGNATURE, CopyDecoder
from indb_tensile.learning.decoding.copystream import blocks
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, CopyEncoding

_ANSWER = np.dtype([("fields", ">i2"), ("id bytes", ">i4"), ("id", ">i8"), ("value bytes", ">i4"), ("value", ">f8")])
_KEY = CopyEncoding(kind=ColumnKind.INTEGER, item=">i8")
_NUMBER = CopyEncoding(kind=ColumnKind.FLOAT, item=">f8")
_ARRAY = CopyEncoding(kind=ColumnKind.ARRAY, item=">f4")


def predict_by_copy(
    connection: Connection, predictor: ModelPredictor, read: sql.Composed, write: str, features: Sequence[str]
) -> None:
    """Run `read`, which copies the key and the features, predict block by block, and copy the results by `write`.

    The features are numbers, except one named pixels. The model is a regression.
    """
    fields = [("id", _KEY), *((name, _ARRAY if name == "pixels" else _NUMBER) for name in features)]
    answers: list[bytes] = []

    def predict(columns: dict[str, ColumnData], rows: int) -> None:
        outputs = predictor.outputs(predictor.preprocessor.transform(columns))
        block = np.empty(rows, _ANSWER)
        block["fields"], block["id bytes"], block["value bytes"] = 2, 8, 8
        block["id"], block["value"] = columns["id"].values, predictor.preprocessor.target.restore(outputs)
        answers.append(block.tobytes())

    decoder = CopyDecoder(fields, predict)
    with connection.cursor() as cursor, cursor.copy(read) as copy:
        for part in blocks(copy, connection, block_bytes=BLOCK_BYTES, large_bytes=1 << 30, check_size=lambda _: None):
            decoder.feed(part)
    decoder.end()
    with connection.cursor() as cursor, cursor.copy(write.encode()) as copy:
        for answer in _framed(answers):
            copy.write(answer)


def _framed(answers: Sequence[bytes]) -> Iterator[bytes]:
    yield SIGNATURE + bytes(8)
    yield from answers
    yield b"\xff\xff"
