"""Refuses an expression whose value may be much larger than the row that it is computed from.

Functions that make a long text from a short one are refused, or take a constant for the size. Functions and lists may
double the size of a text, so their nesting is bounded.
"""

from collections.abc import Mapping, Sequence

from .expression_tokens import TYPE_WORDS, ExpressionFault, Token, is_type

MOST_NESTED = 10  # greatest depth of functions and lists inside one another
MOST_LENGTH = 10_000  # longest padded text, and longest type such as char(n)
MOST_REPLACED = 4  # most calls of regexp_replace, each of which may double the size of a text


def growing(tokens: Sequence[Token], functions: Mapping[str, int]) -> ExpressionFault | None:
    """Return the fault of an expression whose value may be much larger than the row."""
    lists = _lists(tokens)
    enclosing: list[bool] = []  # for each open bracket: whether a value in it may grow
    replaced = 0
    for position, token in enumerate(tokens):
        if token.kind != "mark" or token.text not in "()[]":
            continue
        if token.text in ")]":
            enclosing.pop()
            continue
        name = tokens[position - 1] if position else token
        is_call = token.text == "(" and name.kind in ("word", "name") and name.text in functions
        enclosing.append(is_call or position in lists)
        if sum(enclosing) > MOST_NESTED:
            return ExpressionFault(
                text=f"functions or lists are nested more than {MOST_NESTED} deep", place=name.place
            )
        replaced += is_call and name.text == "regexp_replace"
        if replaced > MOST_REPLACED:
            return ExpressionFault(text=f"it has more than {MOST_REPLACED} calls of regexp_replace", place=name.place)
        fault = _sized(tokens, position) or (_grown_by(tokens, position) if is_call else None)
        if fault is not None:
            return fault
    return None


def _lists(tokens: Sequence[Token]) -> set[int]:
    """Return the brackets of arrays and of lists with a comma: the text of one doubles quotes in a value."""
    opened: list[int] = []
    lists: set[int] = set()
    for position, token in enumerate(tokens):
        if token.kind != "mark":
            continue
        if token.text in "([":
            opened.append(position)
            if token.text == "[":
                lists.add(position)
        elif token.text in ")]":
            opened.pop()
        elif token.text == ",":
            lists.add(opened[-1])
    return lists


def _sized(tokens: Sequence[Token], position: int) -> ExpressionFault | None:
    """Return the fault of a type such as char(100000000)."""
    inner = tokens[position + 1] if position + 1 < len(tokens) else None
    name = tokens[position - 1]
    before = tokens[position - 2] if position > 1 else None
    of_type = (before is not None and is_type(before, None)) or name.text in TYPE_WORDS
    if not of_type or inner is None or inner.kind != "number" or _integer(inner.text) <= MOST_LENGTH:
        return None
    return ExpressionFault(text=f"a type has a length above {MOST_LENGTH}", place=inner.place)


def _grown_by(tokens: Sequence[Token], position: int) -> ExpressionFault | None:
    """Return the fault of a call that makes a text longer than a constant allows."""
    name = tokens[position - 1]
    if name.text in _GROWING:
        return ExpressionFault(
            text=f"function {name.text} can make a value of any size",
            place=name.place,
            hint="Compute the feature in a view or with tensile_train_query.",
        )
    arguments = _arguments(tokens, position)
    if name.text in ("lpad", "rpad"):
        size = _constant(arguments, 1)
        if size is None or size.kind != "number" or _integer(size.text) > MOST_LENGTH:
            text = f"the length of {name.text} is not a number up to {MOST_LENGTH}"
            return ExpressionFault(text=text, place=name.place, hint="Write the length as a number.")
    if name.text in ("replace", "regexp_replace"):
        old, new = _constant(arguments, 1), _constant(arguments, 2)
        allowed = 1 if name.text == "regexp_replace" else 0 if old is None else len(_content(old))
        if new is None or new.kind != "text" or (old is None and _content(new)) or len(_content(new)) > allowed:
            longest = "one character" if name.text == "regexp_replace" else "the text that it replaces"
            return ExpressionFault(
                text=f"the replacement of {name.text} is longer than {longest}, or not a constant", place=name.place
            )
    return None


def _arguments(tokens: Sequence[Token], position: int) -> list[list[Token]]:
    """Return the tokens of each argument of the call whose bracket stands at this position."""
    arguments: list[list[Token]] = [[]]
    depth = 0
    for token in tokens[position:]:
        if token.kind == "mark" and token.text in "([":
            depth += 1
            if depth == 1:
                continue
        elif token.kind == "mark" and token.text in ")]":
            depth -= 1
            if depth == 0:
                break
        if depth == 1 and token.kind == "mark" and token.text == ",":
            arguments.append([])
        else:
            arguments[-1].append(token)
    return arguments


def _constant(arguments: Sequence[Sequence[Token]], place: int) -> Token | None:
    """Return the constant that an argument is, with or without a cast, or None."""
    if len(arguments) <= place or not arguments[place]:
        return None
    first, *others = arguments[place]
    casts = [token.text for token in others]
    constant = first.kind in ("number", "text") and casts in ([], ["::", "text"], ["::", "integer"], ["::", "bpchar"])
    return first if constant else None


def _content(token: Token) -> str:
    return token.text if token.kind != "text" else token.text[token.text.index("'") + 1 : -1]


def _integer(digits: str) -> float:
    return float(digits.replace("_", ""))


# The last ones are the casts to types with a length, called as functions: bpchar('a', 1000000000, true).
_GROWING = frozenset(("repeat", "array_fill", "factorial", "numeric_fac", "bpchar", "bit", "varbit"))
