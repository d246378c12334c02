"""Check which expressions the rules admit, and that no admitted text can leave the statement that contains it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import RequestError
from indb_tensile.request.transform_rules import read_expression, read_transform

COLUMNS = ("a", "at", "word", "filter", "over")
PIECES = (
    *(
        "a",
        "at",
        "word",
        "filter",
        " ",
        "(",
        ")",
        "[",
        "]",
        ",",
        ";",
        ".",
        "'",
        "''",
        '"',
        "\\",
        "\n",
        "--",
        "/*",
        "$$",
    ),
    *("select", "from", "e'", "U&", "::", "text", "+", "1", "extract", "case", "end", "over", "1.5", "x", "b'"),
)


@pytest.mark.parametrize(
    ("text", "columns", "functions"),
    [
        ("EXTRACT(hour FROM at)", {"at"}, {"extract"}),
        ("a / nullif(a, 0)", {"a"}, set()),
        ("'2020-01-01 00:00:00+00'::timestamp with time zone < at", {"at"}, set()),
        ("filter + over", {"filter", "over"}, set()),
        ("case when word in ('x', 'y') then 1.5 else -1 end", {"word"}, set()),
        ("\"left\"(word, 2) || E'\\\\d'", {"word"}, {"left"}),
    ],
)
def test_columns_and_functions_of_an_expression_are_found(text: str, columns: set[str], functions: set[str]) -> None:
    read = read_expression(text, COLUMNS)
    assert (read.fault, set(read.columns), set(read.functions)) == (None, columns, functions)


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_admitted_text_closes_its_brackets_and_names_no_statement(text: str) -> None:
    if read_expression(text, COLUMNS).fault is not None:
        return
    outside, depth, position = [], 0, 0
    while position < len(text):  # PostgreSQL's rules for quotes, written once more
        character = text[position]
        if character in "'\"":
            escaped = position > 0 and character == "'" and text[position - 1] in "eE"
            position += 1
            while text[position] != character or text[position + 1 : position + 2] == character:
                position += 2 if text[position] == character or (escaped and text[position] == "\\") else 1
        else:
            outside.append(character)
            depth += (character in "([") - (character in ")]")
            assert depth >= 0
        position += 1
    plain = "".join(outside)
    assert depth == 0
    assert not any(piece in plain for piece in (";", "--", "/*", "select"))
    assert "$" not in re.sub(r"[A-Za-z_][A-Za-z0-9_$]*", "", plain)  # a name may contain it, and $$ begins a text


@pytest.mark.parametrize("nested", ["lower({})", "array[{}]::text", "({}, 1)::text", "quote_literal({})"])
def test_expression_that_doubles_its_value_many_times_is_refused(nested: str) -> None:
    text = "word"
    for _ in range(11):
        text = nested.format(text)
    fault = read_expression(text, COLUMNS).fault
    assert fault is not None
    assert fault.text == "functions or lists are nested more than 10 deep"


@pytest.mark.parametrize("value", [[], "a", {"f": 1}, {"f": " "}, {"": "a"}, {"n" * 64: "a"}])
def test_argument_that_is_no_object_of_expressions_is_refused(value: object) -> None:
    with pytest.raises(RequestError, match=r"^transform"):
        read_transform(value)
