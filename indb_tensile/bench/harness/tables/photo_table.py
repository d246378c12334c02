"""A table of artificial photographs as JPEG in bytea: noise, brighter in one of four corners, which is the class."""

import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from indb_tensile.bench.harness.tables.sample_tables import SampleTable, make_table
from indb_tensile.job import Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind

_QUALITY = 85  # of JPEG, as cameras store
_SIZES = (4, 16, 64, 256)  # numbers of spots in a row of the noise
_CORNERS = 4
_SCENES = 16
_BRIGHTER = 255 // (len(_SIZES) + 1)  # what the noise leaves


def photo_table(rows: int, side: int, seed: int = 0) -> SampleTable:
    """Return a table of `rows` square photographs of this side, with their corner as the target."""
    draw = np.random.default_rng(seed)
    values = np.empty(rows, object)
    scenes = [_scene(draw, side) for _ in range(_SCENES)]
    values[:] = [_photo(draw, scenes[draw.integers(_SCENES)], row % _CORNERS) for row in range(rows)]
    columns = {
        "photo": ColumnData(kind=ColumnKind.IMAGE, values=values, missing=np.zeros(rows, np.bool_)),
        "corner": column_of("corner", ColumnKind.TEXT, [f"corner {row % _CORNERS}" for row in range(rows)]),
    }
    return SampleTable(name="photos", table=make_table(columns), target="corner", task=Task.CLASSIFICATION)


def _scene(draw: np.random.Generator, side: int) -> npt.NDArray[np.uint8]:
    """Return noise of spots of several sizes, twice as high as a photograph."""
    pixels = np.zeros((2 * side, side, 3), np.float32)
    for size in _SIZES:
        spots = Image.fromarray(draw.integers(0, 256, (2 * size, size, 3), np.uint8))
        pixels += np.asarray(spots.resize((side, 2 * side), Image.Resampling.BILINEAR), np.float32)
    return (pixels / (len(_SIZES) + 1)).astype(np.uint8)


def _photo(draw: np.random.Generator, scene: npt.NDArray[np.uint8], corner: int) -> bytes:
    side = scene.shape[1]
    top = int(draw.integers(0, side))
    pixels = scene[top : top + side].copy()
    down, right = (place * side // 2 for place in divmod(corner, 2))
    pixels[down : down + side // 2, right : right + side // 2] += _BRIGHTER
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()
