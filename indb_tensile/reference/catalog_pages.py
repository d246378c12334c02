"""The reference pages of SQL functions and of views, read from a database in which the catalog is installed.

Signatures come from `pg_catalog`, sentences from `comment on`, so a page cannot differ from the installed objects.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg

from indb_tensile.catalog.queries import parse
from indb_tensile.reference.option_pages import heading

SOURCE = Path(__file__).with_name("catalog.sql")


def catalog_pages(connection: psycopg.Connection) -> dict[str, str]:
    """The text of the pages `functions.md` and `views.md`, by the file's name."""
    return {
        "functions.md": "\n".join(_functions(connection)) + "\n",
        "views.md": "\n".join(_views(connection)) + "\n",
    }


def _functions(connection: psycopg.Connection) -> Iterator[str]:
    yield heading("Signatures of the SQL functions")
    yield ""
    yield "[SQL functions](../user/functions.md) explains the arguments and the errors, with examples that run."
    for name, kind, arguments, result, comment in connection.execute(parse(SOURCE.read_text())["functions"].encode()):
        listed = "(" + "".join(_arguments(arguments)) + ("\n)" if arguments else ")")
        returns = f" returns {result}" if result else ""
        yield f"\n## {name}\n\n{_sentence(comment)}\n\n```text\n{kind} {name}{listed}{returns}\n```"


def _arguments(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the line of each argument."""
    for place, argument in enumerate(arguments, start=1):
        comma = "," if place < len(arguments) else ""
        yield f"\n    {argument}{comma}"


def _views(connection: psycopg.Connection) -> Iterator[str]:
    yield heading("Views")
    yield ""
    yield "A view shows the rows that the role which reads it may see. [Views in use](../user/views.md) has examples."
    last = None
    for view, about, column, kind, comment in connection.execute(parse(SOURCE.read_text())["views"].encode()):
        if view != last:
            yield f"\n## tensile.{view}\n\n{_sentence(about)}\n\n| column | type | meaning |\n|---|---|---|"
            last = view
        yield f"| `{column}` | `{kind}` | {_sentence(comment)} |"


def _sentence(comment: str) -> str:
    """A comment of the catalog as a sentence on one line, fit for a cell of a table."""
    text = " ".join(comment.split()).replace("|", r"\|").replace("<", r"\<").replace("*", r"\*")
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")
