"""The types of columns that models learn from, the kind of each type, and why a type has none."""

# The kind of a column by its base type (request/base_types.py): the name of its type in pg_catalog, `_enum` for an
# array of an enum, `vector` or `halfvec` for a type of pgvector. An enum is of kind text.
KIND_OF_TYPE: dict[str, str] = {
    **dict.fromkeys(("int2", "int4", "int8"), "integer"),
    **dict.fromkeys(("float4", "float8", "numeric"), "float"),
    "bool": "boolean",
    **dict.fromkeys(("text", "varchar", "bpchar", "char", "name", "uuid"), "text"),
    "date": "date",
    **dict.fromkeys(("timestamp", "timestamptz"), "time"),
    **dict.fromkeys(("time", "timetz"), "clock"),
    "interval": "duration",
    **dict.fromkeys(("_float4", "_float8", "_numeric", "_int2", "_int4", "_int8", "_bool"), "array"),
    **dict.fromkeys(("vector", "halfvec"), "array"),
    **dict.fromkeys(("_text", "_varchar", "_bpchar", "_name", "_uuid", "_enum"), "labels"),
    **dict.fromkeys(("json", "jsonb"), "document"),
    "bytea": "image",
}
SUPPORTED_TYPES = (
    "smallint, integer, bigint, real, double precision, numeric, boolean, text, varchar, char, uuid, enums, date, "
    "timestamp, timestamptz, time, timetz, interval, json and jsonb with chosen paths, bytea with "
    "images, pgvector's vector and "
    "halfvec, domains over these, and arrays of numbers, booleans, texts, uuids and enums"
)

_REASONS = {
    "_bytea": "an array of bytes; select one image",
    "money": "the server's locale decides its value; cast it to numeric",
    "xml": "a network reads no XML; select values with xpath()",
    **dict.fromkeys(
        ("point", "lseg", "path", "box", "polygon", "line", "circle"),
        "a geometric type; select coordinates as numbers",
    ),
    **dict.fromkeys(("tsvector", "tsquery"), "a type of text search; select the text itself"),
    **dict.fromkeys(("inet", "cidr", "macaddr", "macaddr8"), "an address; cast it to text to learn categories"),
    **dict.fromkeys(("bit", "varbit"), "a bit string; cast it to text to learn categories"),
    **dict.fromkeys(
        ("_date", "_timestamp", "_timestamptz", "_time", "_timetz", "_interval"),
        "an array of times; select numbers, such as extract(epoch from ...)",
    ),
    **dict.fromkeys(("_json", "_jsonb"), "an array of documents; select one document"),
}
_REASONS_OF_CATEGORY = {
    "C": "a composite type; select its fields",
    "R": "a range; select lower() and upper()",
    "P": "a pseudo-type; cast it",
}
_OTHER = "a type without an encoding; cast it to a number or to text"


def unusable_reason(base: str, category: str) -> str:
    """Return why a type has no kind, with the way out. `category` is PostgreSQL's code of the type's category."""
    return _REASONS.get(base) or _REASONS_OF_CATEGORY.get(category, _OTHER)
