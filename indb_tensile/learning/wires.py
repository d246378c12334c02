"""PostgreSQL's types and how COPY sends them in binary format: which column can be read, and as what."""

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
_TEXT = Wire(kind=Kind.TEXT, item="")  # enums, and types whose binary form is their text
_SINCE_16 = {"char": Wire(kind=Kind.TEXT, item="", form="char_or_octal")}
# Types that only a primary key may have: no model learns from them, and their text tells rows apart.
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
    """How a column's values arrive. `base` is its type below all domains; None: it cannot be learned from."""
    if enumerated:
        return _TEXT
    since = _SINCE_16 if server_version >= 160000 else {}
    return since.get(base or "") or _WIRES.get(base or "")


def of_key(base: str | None, *, sent_as_text: bool) -> Wire | None:
    """How a column of the primary key arrives, which only tells rows apart. None: it cannot be read."""
    return _KEY_WIRES.get(base or "", _TEXT if sent_as_text else None)
