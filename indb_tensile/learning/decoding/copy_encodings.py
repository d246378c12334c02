"""PostgreSQL's types, and the encoding of each type in COPY's binary format."""

from indb_tensile.learning.decoding.binarytimes import INTERVAL_ITEM, ZONED_ITEM
from indb_tensile.learning.storage.columns import ColumnKind, CopyEncoding
from indb_tensile.request.column_types import KIND_OF_TYPE

# The encodings of types whose kind is in request/column_types.py.
_FORMATS: dict[str, dict[str, str]] = {
    "int2": {"item": ">i2"},
    "int4": {"item": ">i4"},
    "int8": {"item": ">i8"},
    "float4": {"item": ">f4"},
    "float8": {"item": ">f8"},
    "numeric": {"item": "", "form": "numeric"},
    "bool": {"item": ">u1"},
    "text": {"item": ""},
    "varchar": {"item": ""},
    "bpchar": {"item": "", "form": "bpchar"},
    "char": {"item": "", "form": "char"},
    "name": {"item": ""},
    "uuid": {"item": "", "form": "uuid"},
    "date": {"item": ">i4"},
    "timestamp": {"item": ">i8"},
    "timestamptz": {"item": ">i8"},
    "time": {"item": ">i8"},
    "timetz": {"item": ZONED_ITEM},
    "interval": {"item": INTERVAL_ITEM},
    "_float4": {"item": ">f4"},
    "_float8": {"item": ">f8"},
    "_numeric": {"item": "", "form": "numeric", "stored": "f8"},
    "_int2": {"item": ">i2", "stored": "f4"},
    "_int4": {"item": ">i4", "stored": "f8"},
    "_int8": {"item": ">i8", "stored": "f8"},
    "_bool": {"item": ">u1", "stored": "?"},
    "vector": {"item": ">f4", "form": "vector"},
    "halfvec": {"item": ">f2", "form": "halfvec", "stored": "f4"},
    "_text": {"item": ""},
    "_varchar": {"item": ""},
    "_bpchar": {"item": "", "form": "bpchar"},
    "_name": {"item": ""},
    "_uuid": {"item": "", "form": "uuid"},
    "_enum": {"item": ""},
    "json": {"item": ""},
    "jsonb": {"item": "", "form": "jsonb"},
    "bytea": {"item": ""},
}
_WIRES = {name: CopyEncoding(kind=ColumnKind(kind), **_FORMATS[name]) for name, kind in KIND_OF_TYPE.items()}
_TEXT = CopyEncoding(kind=ColumnKind.TEXT, item="")  # enums, and types whose binary form equals their text
_SINCE_16 = {"char": CopyEncoding(kind=ColumnKind.TEXT, item="", form="char_or_octal")}
# Types whose text identifies rows as a primary key, whether or not models can learn from them.
_KEY_WIRES = {
    name: CopyEncoding(kind=ColumnKind.TEXT, item="", form=name)
    for name in (
        *("uuid", "bytea", "inet", "cidr", "macaddr", "macaddr8", "interval", "time", "timetz", "bit", "varbit"),
        *("oid", "xid8", "pg_lsn", "jsonb"),
    )
}


def of_column(base: str | None, *, enumerated: bool, server_version: int) -> CopyEncoding | None:
    """Return the encoding of a column's values, or None for a type that models cannot learn from.

    `base` is the column's type without domains.
    """
    if enumerated:
        return _TEXT
    wires_by_version = _SINCE_16 if server_version >= 160000 else {}
    return wires_by_version.get(base or "") or _WIRES.get(base or "")


def of_labels(wire: CopyEncoding) -> CopyEncoding:
    """Return the encoding of an array whose elements are labels: that of an array of integers changes."""
    return _INTEGER_LABELS if wire in _INTEGER_ARRAYS else wire


_INTEGER_ARRAYS = [_WIRES[name] for name in ("_int2", "_int4", "_int8")]
_INTEGER_LABELS = CopyEncoding(kind=ColumnKind.LABELS, item="", form="integer")


def of_key(base: str | None, *, sent_as_text: bool) -> CopyEncoding | None:
    """Return the encoding of a column of the primary key, or None if the column cannot be read.

    Such a column is used only to identify rows.
    """
    return _KEY_WIRES.get(base or "", _TEXT if sent_as_text else None)
