"""Decides which SQL expressions may compute a feature, from the words of the expression alone.

The expressions of a version run in the session of every role that predicts with it, and the owner of a model can
write any text into the specification of a job. So the rules are checked when a training is enqueued, and again by
each session before its first prediction. They admit no statement, no name with a schema and no comment. The names of
the functions are then looked up in pg_catalog (sql_api/expression_functions.py). expression_growth.py bounds the
memory.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import RequestError
from .abbreviation import shown
from .expression_growth import growing
from .expression_tokens import (
    NAME_BYTES,
    TYPE_WORDS,
    ExpressionFault,
    RefusedTextError,
    Token,
    is_type,
    tokens_of,
    unbalanced,
)

MOST_FEATURES = 200
MOST_BYTES = 100_000  # largest size of all expressions; the specification of a job has at most 262144


class ReadExpression(NamedTuple):
    """The columns and functions that an expression names, and its first fault."""

    functions: Mapping[str, int]  # the place of the first call, by the function's name
    columns: frozenset[str] = frozenset()
    fault: ExpressionFault | None = None


def read_transform(value: Any) -> dict[str, str] | None:
    """Return the expressions by the feature's name, or None if the argument is left out. Raises RequestError."""
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise RequestError(f"transform is {shown(value)}, not an object of names and expressions", hint=_EXAMPLE)
    if len(value) > MOST_FEATURES:
        raise RequestError(
            f"transform has {len(value)} features, more than {MOST_FEATURES}",
            hint="Compute the others in a view or with tensile_train_query.",
        )
    for name, text in value.items():
        if not 1 <= len(name.encode()) <= NAME_BYTES:
            raise RequestError(
                f"transform: a feature is named {shown(name)}", hint=f"Give a name of 1 to {NAME_BYTES} bytes."
            )
        if not text.strip():
            raise RequestError(f'transform: feature "{name}" has no expression', hint=_EXAMPLE)
    size_bytes = sum(len(text.encode()) for text in value.values())
    if size_bytes > MOST_BYTES:
        raise RequestError(
            f"transform: the expressions have {size_bytes} bytes, more than {MOST_BYTES}",
            hint="Compute some of the features in a view or with tensile_train_query.",
        )
    return dict(value)


def read_expression(text: str, columns: Collection[str]) -> ReadExpression:
    """Return the columns and functions that the expression names. `columns` are the columns that it may name."""
    try:
        tokens = list(tokens_of(text))
    except RefusedTextError as refused:
        return ReadExpression(functions={}, fault=refused.fault)
    named: set[str] = set()
    functions: dict[str, int] = {}
    for position, token in enumerate(tokens):
        role = _role(tokens, position, columns)
        if isinstance(role, ExpressionFault):
            return ReadExpression(functions={}, fault=role)
        if role == "column":
            named.add(token.text)
        elif role == "function":
            functions.setdefault(token.text, token.place)
    fault = unbalanced(tokens) or growing(tokens, functions)
    return ReadExpression(columns=frozenset(named), functions=functions, fault=fault)


def _role(tokens: Sequence[Token], position: int, columns: Collection[str]) -> str | ExpressionFault:
    """Return what the token is: column, function, type, keyword or other."""
    token = tokens[position]
    before = tokens[position - 1] if position else None
    after = tokens[position + 1] if position + 1 < len(tokens) else None
    if after is not None and after.kind == "mark" and after.text == ".":
        return _mark_fault(after)
    if token.kind == "text":
        return _text_role(token, before)
    if token.kind == "mark" and token.text in ".;":
        return _mark_fault(token)
    if token.kind == "operator" and token.text == "=>":
        return ExpressionFault(text="a function's argument is named", place=token.place, hint="Give it by its place.")
    return _name_role(token, before, after, columns) if token.kind in ("word", "name") else "other"


def _name_role(
    token: Token, before: Token | None, after: Token | None, columns: Collection[str]
) -> str | ExpressionFault:
    """Return what a word, or a name in double quotes, is."""
    following = "" if after is None else after.text
    called = following == "("
    if token.kind == "name":
        return "type" if is_type(before, None) else "function" if called else _column_role(token, columns)
    zoned = token.text == "with" and following == "time"  # timestamp with time zone
    named = token.text in _UNRESERVED and token.text in columns
    if token.text in _REFUSED_WORDS and not zoned and not named:
        meaning = _REFUSED_WORDS[token.text]
        return ExpressionFault(text=f'"{token.text}" stands for {meaning}', place=token.place, hint=_ONE_ROW)
    if is_type(before, after) or zoned or token.text in TYPE_WORDS:
        return "type"
    if token.text in _RESERVED:
        return "keyword"
    if called and token.text not in _SPECIAL:
        return "function"
    if token.text not in columns and (token.text in _SPECIAL or following == "from"):  # extract(week from at)
        return "keyword"
    return _column_role(token, columns)


def _column_role(token: Token, columns: Collection[str]) -> str | ExpressionFault:
    if token.text in columns:
        return "column"
    return ExpressionFault(
        text=f'there is no column "{token.text}"', place=token.place, hint="An expression names columns of the table."
    )


def _text_role(token: Token, before: Token | None) -> str | ExpressionFault:
    if before is not None and before.kind == "text":  # the second of 'a' 'b' may be read as an escaped text
        return ExpressionFault(text="two texts follow one another", place=token.place, hint="Join them with ||.")
    return "other"


def _mark_fault(token: Token) -> ExpressionFault:
    if token.text == ";":
        return ExpressionFault(text="it is not one expression", place=token.place)
    return ExpressionFault(
        text="a name has a schema or a table",
        place=token.place,
        hint="Name columns, functions and types alone. Functions and types are those of pg_catalog.",
    )


_EXAMPLE = """Give one such as transform => '{"hour": "extract(hour from at)"}'."""
_ONE_ROW = "An expression computes one value from the columns of one row. Compute others in a view."
# Words of what is no expression over one row. A column of such a name is written in double quotes.
_REFUSED_WORDS = {
    **dict.fromkeys(("select", "table", "with", "values", "union", "intersect", "except"), "a query"),
    **dict.fromkeys(("over", "window", "partition"), "a window function"),
    **dict.fromkeys(("filter", "within", "order", "group", "having", "limit"), "an aggregate"),
    "exists": "a sub-select",
    "operator": "an operator with a schema",
    "variadic": "a list of arguments",
    "row": "a row",
    "default": "a default",
    **dict.fromkeys(
        ("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"),
        "the time of the session",
    ),
    **dict.fromkeys(
        ("current_user", "session_user", "user", "current_role", "current_catalog", "current_schema"),
        "a name of the session",
    ),
}
# Those of them that may be a column's name without quotes.
_UNRESERVED = frozenset(("over", "partition", "filter", "within", "operator"))
# Keywords of expressions, which PostgreSQL reserves: no column has such a name without quotes.
_RESERVED = frozenset(
    (
        *(
            "and",
            "any",
            "all",
            "array",
            "as",
            "asymmetric",
            "both",
            "case",
            "cast",
            "collate",
            "distinct",
            "else",
            "end",
        ),
        *("false", "for", "from", "ilike", "in", "is", "isnull", "leading", "like", "not", "notnull", "null", "or"),
        *("placing", "similar", "some", "symmetric", "then", "to", "trailing", "true", "when"),
    )
)
# Keywords that PostgreSQL does not reserve, or calls of its grammar: columns may have these names.
_SPECIAL = frozenset(
    (
        *("at", "between", "coalesce", "escape", "greatest", "least", "nullif", "time", "unknown", "zone"),
        *("year", "month", "day", "hour", "minute", "second", "normalized", "nfc", "nfd", "nfkc", "nfkd"),
    )
)
