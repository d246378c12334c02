"""The types of columns that models learn from, and the kind of each type."""

# The kind of a column by the name of its type in pg_catalog. An enum is of kind text.
KIND_OF_TYPE: dict[str, str] = {
    **dict.fromkeys(("int2", "int4", "int8"), "integer"),
    **dict.fromkeys(("float4", "float8", "numeric"), "float"),
    "bool": "boolean",
    **dict.fromkeys(("text", "varchar", "bpchar", "char", "name"), "text"),
    "date": "date",
    **dict.fromkeys(("timestamp", "timestamptz"), "time"),
    **dict.fromkeys(("_float4", "_float8", "_numeric", "_int2", "_int4", "_int8"), "array"),
}
SUPPORTED_TYPES = (
    "smallint, integer, bigint, real, double precision, numeric, boolean, text, varchar, char, enums, date, "
    "timestamp, timestamptz, and arrays of real, double precision, numeric and integers"
)
