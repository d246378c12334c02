"""Divides an SQL expression into tokens, and refuses a text that PostgreSQL may divide in another way."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from .abbreviation import shown

MOST_CHARACTERS = 4000  # longest expression
NAME_BYTES = 63  # longest name; PostgreSQL cuts a longer one


class ExpressionFault(NamedTuple):
    """Why an expression is refused. `place` is the character, counted from 1, at which the fault is."""

    text: str
    place: int
    hint: str = ""


class Token(NamedTuple):
    """A token of an expression. `place` is its first character, counted from 1."""

    kind: str  # number, text, name (in double quotes), word, cast, operator or mark
    text: str  # of a word in lower case; of a name without its quotes
    place: int


class RefusedTextError(Exception):
    """A text that cannot be divided into tokens."""

    def __init__(self, fault: ExpressionFault) -> None:
        super().__init__(fault.text)
        self.fault = fault


def tokens_of(text: str) -> Iterator[Token]:
    """Divide the text as PostgreSQL does with standard_conforming_strings. Refuses what the rules never admit."""
    if len(text) > MOST_CHARACTERS:
        message = f"it has {len(text)} characters, more than {MOST_CHARACTERS}"
        raise RefusedTextError(ExpressionFault(text=message, place=1))
    pattern = _pattern_of_tokens()
    position, before = 0, ""
    while position < len(text):
        match = pattern.match(text, position)
        fault = _refused_text(text, position, match, before)
        if fault is not None:
            raise RefusedTextError(fault)
        assert match is not None
        kind, own = str(match.lastgroup), match[0]
        if kind != "space":
            # PostgreSQL makes only the letters of ASCII small in a database of UTF-8.
            small = _CAPITALS.sub(lambda letter: letter[0].lower(), own) if kind == "word" else own
            name = own[1:-1].replace('""', '"') if kind == "name" else small
            yield Token(kind=kind, text=name, place=position + 1)
        before = kind
        position = match.end()


def _refused_text(text: str, position: int, match: re.Match[str] | None, before: str) -> ExpressionFault | None:
    """Return why PostgreSQL might divide the text otherwise than this module, or None."""
    place = position + 1
    if match is None:
        rest = text[position]
        if rest in "'\"":
            return ExpressionFault(text="a quotation mark has no end", place=place)
        return ExpressionFault(text=f"the character {shown(rest)} cannot stand in an expression", place=place)
    kind, own = match.lastgroup, match[0]
    if kind == "comment" or (kind == "operator" and ("--" in own or "/*" in own)):
        return ExpressionFault(text="it has a comment", place=place)
    if kind == "text" and "\0" in own:
        return ExpressionFault(text="it has a character that PostgreSQL does not store", place=place)
    if kind in ("word", "name") and not 1 <= len(own.strip('"').encode()) <= NAME_BYTES:
        return ExpressionFault(text=f"a name has not 1 to {NAME_BYTES} bytes", place=place)
    # B'...', U&"..." and 1a are words of their own for PostgreSQL.
    if (kind in ("text", "name") and before in ("word", "name", "number", "text")) or (
        kind == "word" and before == "number"
    ):
        return ExpressionFault(text="a space is missing", place=place)
    quoted = text[match.end() : match.end() + 1] in ("'", '"')
    if kind == "operator" and own.startswith("&") and quoted and before == "word":
        return ExpressionFault(text="a text in the form U&'...' cannot stand here", place=place)
    return None


def is_type(before: Token | None, after: Token | None) -> bool:
    """Return whether a word between these tokens names a type, as in x::date and in date '2020-01-01'."""
    if before is not None and (before.kind == "cast" or (before.kind == "word" and before.text in ("as", "collate"))):
        return True
    return after is not None and after.kind == "text"


def unbalanced(tokens: Sequence[Token]) -> ExpressionFault | None:
    """Return the fault of a bracket without its partner. No statement that contains the expression can be left."""
    opened: list[Token] = []
    for token in tokens:
        if token.kind != "mark":
            continue
        if token.text in "([":
            opened.append(token)
        elif token.text in ")]":
            if not opened or opened.pop().text + token.text not in ("()", "[]"):
                return ExpressionFault(text=f'a "{token.text}" closes nothing', place=token.place)
        elif token.text == "," and not opened:
            return ExpressionFault(text="it is not one expression", place=token.place)
    return ExpressionFault(text=f'a "{opened[-1].text}" is not closed', place=opened[-1].place) if opened else None


_CAPITALS = re.compile("[A-Z]")
TYPE_WORDS = frozenset(("double", "precision", "varying", "without"))


@cache
def _pattern_of_tokens() -> re.Pattern[str]:
    """Compile the pattern when a session reads its first expression: that takes four milliseconds."""
    return re.compile(
        r"""(?P<space>[ \t\n\r\f\v]+)
          | (?P<comment>--|/\*)
          | (?P<number>(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
          | (?P<text>[eE]'(?:[^'\\]|''|\\[^\0])*'|'(?:[^']|'')*')
          | (?P<name>"(?:[^"\0]|"")+")
          | (?P<word>[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*)
          | (?P<cast>::)
          | (?P<operator>[-+*/<>=~!@\#%^&|`?]+)
          | (?P<mark>[()\[\],:.;])""",
        re.VERBOSE,
    )
