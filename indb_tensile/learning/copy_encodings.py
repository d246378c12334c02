"""PostgreSQL's types, and the encoding of each type in COPY's binary format."""

from indb_tensile.learning.columns import ColumnKind, CopyEncoding

_WIRES = {
    "int2": CopyEncoding(kind=ColumnKind.INTEGER, item=">i2"),
    "int4": CopyEncoding(kind=ColumnKind.INTEGER, item=">i4"),
    "int8": CopyEncoding(kind=ColumnKind.INTEGER, item=">i8"),
    "float4": CopyEncoding(kind=ColumnKind.FLOAT, item=">f4"),
    "float8": CopyEncoding(kind=ColumnKind.FLOAT, item=">f8"),
    "numeric": CopyEncoding(kind=ColumnKind.FLOAT, item="", form="numeric"),
    "bool": CopyEncoding(kind=ColumnKind.BOOLEAN, item=">u1"),
    "text": CopyEncoding(kind=ColumnKind.TEXT, item=""),
    "varchar": CopyEncoding(kind=ColumnKind.TEXT, item=""),
    "bpchar": CopyEncoding(kind=ColumnKind.TEXT, item="", form="bpchar"),
    "char": CopyEncoding(kind=ColumnKind.TEXT, item="", form="char"),
    "name": CopyEncoding(kind=ColumnKind.TEXT, item=""),
    "date": CopyEncoding(kind=ColumnKind.DATE, item=">i4"),
    "timestamp": CopyEncoding(kind=ColumnKind.TIME, item=">i8"),
    "timestamptz": CopyEncoding(kind=ColumnKind.TIME, item=">i8"),
    "_float4": CopyEncoding(kind=ColumnKind.ARRAY, item=">f4"),
    "_float8": CopyEncoding(kind=ColumnKind.ARRAY, item=">f8"),
    "_numeric": CopyEncoding(kind=ColumnKind.ARRAY, item="", form="numeric", stored="f8"),
    "_int2": CopyEncoding(kind=ColumnKind.ARRAY, item=">i2", stored="f4"),
    "_int4": CopyEncoding(kind=ColumnKind.ARRAY, item=">i4", stored="f8"),
    "_int8": CopyEncoding(kind=ColumnKind.ARRAY, item=">i8", stored="f8"),
}
_TEXT = CopyEncoding(kind=ColumnKind.TEXT, item="")  # enums, and types whose binary form equals their text
_SINCE_16 = {"char": CopyEncoding(kind=ColumnKind.TEXT, item="", form="char_or_octal")}
# Types that are read only in a primary key: no model learns from them, but their text identifies rows.
_KEY_WIRES = {
    name: CopyEncoding(kind=ColumnKind.TEXT, item="", form=name)
    for name in (
        *("uuid", "bytea", "inet", "cidr", "macaddr", "macaddr8", "interval", "time", "timetz", "bit", "varbit"),
        *("oid", "xid8", "pg_lsn", "jsonb"),
    )
}
SUPPORTED_TYPES = (
    "smallint, integer, bigint, real, double precision, numeric, boolean, text, varchar, char, enums, date, "
    "timestamp, timestamptz, and arrays of real, double precision, numeric and integers"
)


def of_column(base: str | None, *, enumerated: bool, server_version: int) -> CopyEncoding | None:
    """Return the encoding of a column's values, or None for a type that models cannot learn from.

    `base` is the column's type without domains.
    """
    if enumerated:
        return _TEXT
    wires_by_version = _SINCE_16 if server_version >= 160000 else {}
    return wires_by_version.get(base or "") or _WIRES.get(base or "")


def of_key(base: str | None, *, sent_as_text: bool) -> CopyEncoding | None:
    """Return the encoding of a column of the primary key, or None if the column cannot be read.

    Such a column is used only to identify rows.
    """
    return _KEY_WIRES.get(base or "", _TEXT if sent_as_text else None)
