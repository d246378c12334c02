"""Decodes arrays of texts in COPY's binary format as sets of labels."""

import struct
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import InvariantError
from indb_tensile.learning.decoding.copyrows import KnownValues, Segment, decode_repeated
from indb_tensile.learning.storage.columns import Mask

Labels = tuple[str, ...]

_HEADER = struct.Struct(">iiI")  # dimensions, flag for NULLs, element type; 8 bytes for each dimension follow
_LENGTH = struct.Struct(">i")
_MOST_DIMENSIONS = 6  # PostgreSQL's MAXDIM


def label_set(texts: Iterable[str | None]) -> Labels:
    """Return the distinct labels in text order. NULL is no label."""
    return tuple(sorted({text for text in texts if text is not None}))


def decode_labels(
    segments: Sequence[Segment],
    field: int,
    missing: Mask,
    form: Callable[[bytes], str],
    known: KnownValues[Labels],
    name: str,
    rows_before: int,
) -> npt.NDArray[np.object_]:
    """Decode a column. The dimensions of an array mean nothing to its labels; an empty array has none.

    `known` maps the bytes of repeated arrays to a shared tuple.
    """
    return decode_repeated(
        segments, field, missing, lambda raw: label_set(_elements(raw, form)), known, name, rows_before
    )


def _elements(raw: bytes, form: Callable[[bytes], str]) -> Iterable[str | None]:
    dimensions, _, _ = _HEADER.unpack_from(raw)
    if not 0 <= dimensions <= _MOST_DIMENSIONS:
        raise InvariantError(f"an array of {dimensions} dimensions in COPY's stream")
    at = _HEADER.size + 8 * dimensions
    while at < len(raw):
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        yield None if length < 0 else form(raw[at : at + length])
        at += max(length, 0)
