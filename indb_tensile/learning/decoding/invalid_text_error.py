"""The error of a text that is not valid UTF-8. Only a database in SQL_ASCII has such texts."""

from indb_tensile.errors import DataError
from indb_tensile.request.invalid_text_hint import conversion_hint

_SHOWN_BYTES = 40


class InvalidTextError(DataError):
    """A text of a column cannot be decoded. `place` is the row among those that were decoded together."""

    sqlstate = "22021"  # character_not_in_repertoire, as PostgreSQL calls it

    def __init__(self, column: str, cause: UnicodeDecodeError, place: int, rows_before: int) -> None:
        text = cause.object
        shown = repr(text[:_SHOWN_BYTES])[2:-1] + ("..." if len(text) > _SHOWN_BYTES else "")
        super().__init__(
            f'column "{column}", row {rows_before + place + 1}: the text is not valid UTF-8: {shown}',
            detail=f"The first byte at fault is 0x{text[cause.start]:02x}. The encoding of the database is "
            "SQL_ASCII, in which PostgreSQL accepts any bytes.",
            hint=conversion_hint(column),
        )
        self.place = place


class InvalidNameError(DataError):
    """PostgreSQL refuses to send the name of a table, a column, a type or a role."""

    sqlstate = InvalidTextError.sqlstate

    def __init__(self, table: str, refusal: str) -> None:
        super().__init__(
            f"table {table} cannot be read: a name of a table, a column, a type or a role is not valid UTF-8",
            detail=f"PostgreSQL says: {refusal}. The encoding of the database is SQL_ASCII, in which PostgreSQL "
            "accepts any bytes.",
            hint="Rename it, with a name in UTF-8.",
        )
