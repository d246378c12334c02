"""PostgreSQL's types, and the encoding of each type in COPY's binary format."""

from indb_tensile.learning.columns import Kind, Wire

_WIRES = {
    "int2": Wire(kind=Kind.INTEGER, item=">i2"),
    "int4": Wire(kind=Kind.INTEGER, item=">i4"),
    "int8": Wire(kind=Kind.INTEGER, item=">i8"),
    "float4": Wire(kind=Kind.FLOAT, item=">f4"),
    "float8": Wire(kind=Kind.FLOAT, item=">f8"),
    "numeric": Wire(kind=Kind.FLOAT, item="", form="numeric"),
    "bool": Wire(kind=Kind.BOOLEAN, item=">u1"),
    "text": Wire(kind=Kind.TEXT, item=""),
    "varchar": Wire(kind=Kind.TEXT, item=""),
    "bpchar": Wire(kind=Kind.TEXT, item="", form="bpchar"),
    "char": Wire(kind=Kind.TEXT, item="", form="char"),
    "name": Wire(kind=Kind.TEXT, item=""),
    "date": Wire(kind=Kind.DATE, item=">i4"),
    "timestamp": Wire(kind=Kind.TIME, item=">i8"),
    "timestamptz": Wire(kind=Kind.TIME, item=">i8"),
    "_float4": Wire(kind=Kind.ARRAY, item=">f4"),
    "_float8": Wire(kind=Kind.ARRAY, item=">f8"),
    "_numeric": Wire(kind=Kind.ARRAY, item="", form="numeric", stored="f8"),
    "_int2": Wire(kind=Kind.ARRAY, item=">i2", stored="f4"),
    "_int4": Wire(kind=Kind.ARRAY, item=">i4", stored="f8"),
    "_int8": Wire(kind=Kind.ARRAY, item=">i8", stored="f8"),
}
_TEXT = Wire(kind=Kind.TEXT, item="")  # enums, and types whose binary form equals their text
_SINCE_16 = {"char": Wire(kind=Kind.TEXT, item="", form="char_or_octal")}
# Types that are read only in a primary key: no model learns from them, but their text identifies rows.
_KEY_WIRES = {
    name: Wire(kind=Kind.TEXT, item="", form=name)
    for name in (
        *("uuid", "bytea", "inet", "cidr", "macaddr", "macaddr8", "interval", "time", "timetz", "bit", "varbit"),
        *("oid", "xid8", "pg_lsn", "jsonb"),
    )
}
SUPPORTED_TYPES = (
    "smallint, integer, bigint, real, double precision, numeric, boolean, text, varchar, char, enums, date, "
    "timestamp, timestamptz, and arrays of real, double precision, numeric and integers"
)


def of_column(base: str | None, *, enumerated: bool, server_version: int) -> Wire | None:
    """Return the encoding of a column's values, or None for a type that models cannot learn from.

    `base` is the column's type without domains.
    """
    if enumerated:
        return _TEXT
    wires_by_version = _SINCE_16 if server_version >= 160000 else {}
    return wires_by_version.get(base or "") or _WIRES.get(base or "")


def of_key(base: str | None, *, sent_as_text: bool) -> Wire | None:
    """Return the encoding of a column of the primary key, or None if the column cannot be read.

    Such a column is used only to identify rows.
    """
    return _KEY_WIRES.get(base or "", _TEXT if sent_as_text else None)
