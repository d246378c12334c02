"""Says how to convert a text of another encoding than UTF-8 in a database whose encoding is SQL_ASCII."""


def conversion_hint(column: str) -> str:
    """Return the HINT of the error that a text in this column is not valid UTF-8."""
    quoted = '"' + column.replace('"', '""') + '"'
    return (
        "Store it in UTF-8, or leave the column out. The expression convert_from(convert(convert_to("
        f"{quoted}, 'SQL_ASCII'), 'LATIN1', 'UTF8'), 'UTF8') converts a text from LATIN1, in an update or a view."
    )
