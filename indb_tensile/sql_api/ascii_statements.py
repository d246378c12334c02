"""Runs statements with characters beyond ASCII in databases whose encoding is not UTF-8.

PL/Python converts parameters and results to and from the encoding of the database, but hands over the text of a
statement in UTF-8, and quotes names and texts as if they were in UTF-8. So here names and texts are quoted by this
module, and a statement is written with the escapes of PostgreSQL's lexer. In a database in UTF-8 nothing is changed.
Nor is it in SQL_ASCII, in which PostgreSQL takes all bytes as they are.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from .spi import Cursor, Plpy, PreparedStatement, Row


class AsciiStatements:
    """PL/Python's `plpy`, which gets every statement in ASCII."""

    def __init__(self, plpy: Plpy) -> None:
        self._plpy = plpy

    @property
    def SPIError(self) -> type[Exception]:  # noqa: N802 - the name in plpy
        """See `Plpy`."""
        return self._plpy.SPIError

    def prepare(self, query: str, types: Sequence[str]) -> PreparedStatement:
        """See `Plpy`."""
        return self._plpy.prepare(in_ascii(query), types)

    def execute(self, plan: PreparedStatement | str, arguments: Sequence[object] = ()) -> Iterable[Row]:
        """See `Plpy`."""
        if isinstance(plan, str):
            return self._plpy.execute(in_ascii(plan))
        return self._plpy.execute(plan, arguments)

    def cursor(self, query: str) -> Cursor:
        """See `Plpy`."""
        return self._plpy.cursor(in_ascii(query))

    def notice(self, message: str) -> None:
        """See `Plpy`."""
        self._plpy.notice(message)

    def quote_ident(self, name: str) -> str:
        """See `Plpy`."""
        return self._plpy.quote_ident(name) if name.isascii() else '"' + name.replace('"', '""') + '"'

    def quote_literal(self, text: str) -> str:
        """See `Plpy`."""
        return self._plpy.quote_literal(text) if text.isascii() else _text_constant(text)


def in_ascii(statement: str) -> str:
    """Return a statement of the same meaning in ASCII. `standard_conforming_strings` is on.

    Of names without quotes only the letters of ASCII become small, as in UTF-8. A token that has no end, or in which
    UESCAPE gives another escape character, is left for PostgreSQL to refuse.
    """
    if statement.isascii():
        return statement
    return "".join(_parts(statement))


def _parts(statement: str) -> Iterable[str]:
    position = 0
    pattern, writers = _pattern_of_tokens(), _writers()
    while position < len(statement):
        match = pattern.match(statement, position)
        if match is None:
            yield statement[position]
            position += 1
        elif match.lastgroup == "comment":
            position, ended = _end_of_comment(statement, match.end())
            yield " " if ended else match[0]
        else:
            position = match.end()
            yield match[0] if match[0].isascii() else writers[str(match.lastgroup)](match[0])


def _end_of_comment(statement: str, position: int) -> tuple[int, bool]:
    """Return where the comment ends that has begun before this place, and whether it does: comments have comments."""
    depth = 1
    while depth:
        mark = re.compile(r"/\*|\*/").search(statement, position)
        if mark is None:
            return len(statement), False
        depth += 1 if mark[0] == "/*" else -1
        position = mark.end()
    return position, True


def _text_constant(text: str) -> str:
    """Return a text as an escape string constant, which means the same whatever the session's settings."""
    return "E'" + _escaped(text.replace("\\", "\\\\").replace("'", "''")) + "'"


def _escaped(text: str) -> str:
    """Write characters beyond ASCII as in an escape string constant."""
    return _BEYOND_ASCII.sub(lambda character: f"\\U{ord(character[0]):08x}", text)


def _escaped_by_unicode(text: str) -> str:
    """Write characters beyond ASCII as in a string constant or a name that begins with U&."""
    return _BEYOND_ASCII.sub(lambda character: f"\\+{ord(character[0]):06x}", text)


def _dollar_quoted(token: str) -> str:
    tag = token[: token.index("$", 1) + 1]
    return _text_constant(token[len(tag) : -len(tag)])


def _quoted_name(token: str) -> str:
    return "U&" + _escaped_by_unicode(token.replace("\\", "\\\\"))


def _word(token: str) -> str:
    return _quoted_name('"' + _CAPITALS.sub(lambda letter: letter[0].lower(), token) + '"')


_BEYOND_ASCII = re.compile("[^\0-\x7f]")
_CAPITALS = re.compile("[A-Z]")


@cache
def _writers() -> dict[str, Callable[[str], str]]:
    """Return by the kind of token how it is written in ASCII."""
    return {
        "line": lambda token: " ",
        "unicode": _escaped_by_unicode,
        "escape": _escaped,
        "text": lambda token: _text_constant(token.lstrip("nN")[1:-1].replace("''", "'")),
        "name": _quoted_name,
        "dollar": _dollar_quoted,
        "word": _word,
    }


@cache
def _pattern_of_tokens() -> re.Pattern[str]:
    """Compile the pattern when a session first needs it."""
    return re.compile(
        r"""(?P<comment>/\*)
          | (?P<line>--[^\n\r]*)
          | (?P<unicode>[uU]&(?:'(?:[^']|'')*'|"(?:[^"]|"")+"))
          | (?P<escape>[eE]'(?:[^'\\]|''|\\(?:.|\n))*')
          | (?P<text>[nN]?'(?:[^']|'')*')
          | (?P<name>"(?:[^"]|"")+")
          | (?P<dollar>\$(?P<tag>(?:[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*)?)\$.*?\$(?P=tag)\$)
          | (?P<word>[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*)""",
        re.VERBOSE | re.DOTALL,
    )
