"""Computes the features that a version's `transform` defines, for rows that are about to be predicted.

The owner of a model chooses the expressions, and they run in the session of every role that predicts. So each session
checks them again before it first uses a version (request/transform_rules.py). An expression can use only the columns
that it names, as values of types of pg_catalog, and only functions and operators of pg_catalog.

row_features.py loads this module at need: it and the reader of expressions take a session of PostgreSQL longer to
load than all else that a first prediction needs.
"""

# ruff: noqa: S608 - names are quoted by quote_ident, and expressions have passed read_expression

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..request.transform_rules import read_expression, read_transform
from .expression_functions import refused_functions
from .pinned_settings import ALL, pinned
from .refusals import DATA, MISSING_COLUMN, WRONG_KIND, RefusalError, database_error_fields
from .spi import Json, Plpy, PreparedStatement, Row
from .stored_transforms import not_admitted, stored_transform

_MOST_KEPT = 64  # most versions whose prepared statements a session keeps


class Computation(NamedTuple):
    """The checked expressions of a version, and the statement that adds their values to rows in JSON."""

    expressions: Mapping[str, str]
    inputs: Mapping[str, str]  # the type in pg_catalog of each column that an expression names
    statement: PreparedStatement


def computed_rows(
    plpy: Plpy, version: Row, rows: Sequence[bytes | None], *, first: int | None, unnamed: bool
) -> list[bytes | None]:
    """Return rows with the computed features of a version that has some. Arguments are those of `with_features`."""
    computation = _computation(plpy, version)
    if unnamed:
        raise _unnamed("a row without names of columns", computation)
    texts = [None if row is None else row.decode() for row in rows]
    with pinned(plpy, ALL):
        try:
            computed = list(plpy.execute(computation.statement, [texts, list(computation.inputs)]))
        except plpy.SPIError as error:
            raise _error_of_row(plpy, computation, texts, error, first) from None
    for place, record in enumerate(computed):
        _check_row(record, computation, "" if first is None else f" {first + place}")
    return [None if record["row"] is None else record["row"].encode() for record in computed]


def _check_row(record: Row, computation: Computation, number: str) -> None:
    if record["kind"] in (None, "null"):
        return
    if record["kind"] != "object":
        raise _unnamed(f"row{number}, which is {record['kind']} and no row with names of columns,", computation)
    if record["lacking"] is not None:
        users = [
            name for name, text in computation.expressions.items() if _names(text, computation, record["lacking"])
        ]
        raise RefusalError(
            MISSING_COLUMN,
            f'row{number} has no column "{record["lacking"]}", from which the model computes "{users[0]}"',
            detail=f"The model computes it as {computation.expressions[users[0]]}.",
            hint=f"Give these columns: {', '.join(computation.inputs)}. A value that is not known is null.",
        )


def _names(text: str, computation: Computation, column: str) -> bool:
    return column in read_expression(text, computation.inputs).columns


def _unnamed(subject: str, computation: Computation) -> RefusalError:
    return RefusalError(
        WRONG_KIND,
        f"the features of {subject} cannot be computed",
        detail=f"The model computes {', '.join(computation.expressions)} from columns by their names.",
        hint="Pass a row of a table, or jsonb: tensile_predict('model', t) from a table t, or "
        "'{\"column\": 1}'::jsonb.",
    )


def _computation(plpy: Plpy, version: Row) -> Computation:
    """Return the computation of a version, which is checked and prepared once in a session."""
    key = (version["version_id"], version["transform"])
    if key not in _computations:
        _computations[key] = _checked(plpy, stored_transform(version), version["number"])
        if len(_computations) > _MOST_KEPT:
            _computations.popitem(last=False)
    _computations.move_to_end(key)
    return _computations[key]


def _checked(plpy: Plpy, transform: Any, number: int) -> Computation:
    """Check what the model's owner has stored, and prepare the statement. Raises RefusalError."""
    checked, inputs = checked_expressions(plpy, transform, number)
    with pinned(plpy, ALL):
        statement = plpy.prepare(_statement(plpy, checked, inputs), ["text[]", "text[]"])
    return Computation(expressions=checked, inputs=inputs, statement=statement)


def checked_expressions(plpy: Plpy, transform: Json, number: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the expressions that version `number` stores, and the types of their columns.

    Raises RefusalError for what tensile_train would not have stored: the model's owner may have written it.
    """
    expressions, inputs = transform["expressions"], transform["inputs"]
    checked = read_transform(expressions) or {}
    if not isinstance(inputs, dict) or not all(isinstance(name, str) for name in inputs.values()):
        raise not_admitted(number, "the types of its columns are not texts")
    functions: dict[str, int] = {}
    for name, text in checked.items():
        read = read_expression(text, inputs)
        if read.fault is not None:
            raise not_admitted(
                number, f'feature "{name}": {read.fault.text}, at character {read.fault.place} of {text}'
            )
        functions.update(read.functions)
    for function, reason in refused_functions(plpy, functions, stored=True).items():
        raise not_admitted(number, f"function {function}: {reason}")
    return dict(checked), inputs


def _statement(plpy: Plpy, expressions: Mapping[str, str], inputs: Mapping[str, str]) -> str:
    values = ", ".join(f"({text}) as {plpy.quote_ident(name)}" for name, text in expressions.items())
    columns = ", ".join(f"{plpy.quote_ident(name)} {typed(plpy, base)}" for name, base in inputs.items())
    source = f"jsonb_to_record({_value_of_inputs(plpy, inputs)}) as x ({columns})" if columns else "(select) as x"
    return f"""
select jsonb_typeof(r.value) as kind,
       case when jsonb_typeof(r.value) = 'object'
            then (select n.name from unnest($2) as n (name) where not r.value ? n.name limit 1) end as lacking,
       case when jsonb_typeof(r.value) = 'object'
            then (r.value || (select to_jsonb(f.*) from (select {values} from {source}) as f))::text end as row
  from unnest($1) with ordinality as g (json, place)
  cross join lateral (select g.json::jsonb as value offset 0) as r
 order by g.place"""


def _value_of_inputs(plpy: Plpy, inputs: Mapping[str, str]) -> str:
    """Return the SQL expression of a row from which the inputs are read. JSON has a vector as its text: "[1,0.5]"."""
    value = "r.value"
    for name in (name for name, base in inputs.items() if base == "_float4"):
        key = plpy.quote_literal(name)
        value += (
            f" || case when jsonb_typeof(r.value -> {key}) = 'string' and r.value ->> {key} like '[%'"
            f" then jsonb_build_object({key}, (r.value ->> {key})::jsonb) else '{{}}' end"
        )
    return value


def typed(plpy: Plpy, base: str) -> str:
    """Return the SQL name of a type of pg_catalog."""
    return f"pg_catalog.{plpy.quote_ident(base)}"


def _error_of_row(
    plpy: Plpy, computation: Computation, texts: Sequence[str | None], error: Exception, first: int | None
) -> Exception:
    """Return PostgreSQL's error with its row and its feature, or unchanged if it is about neither."""
    fields = database_error_fields(error)
    if not fields["sqlstate"].startswith(DATA[:2]):
        return error
    for place, text in enumerate(texts):
        number = "" if first is None else f" {first + place}"
        for name, expression in computation.expressions.items():
            columns = read_expression(expression, computation.inputs).columns
            inputs = {column: base for column, base in computation.inputs.items() if column in columns}
            alone = _statement(plpy, {name: expression}, inputs)
            try:
                plpy.execute(plpy.prepare(alone, ["text[]", "text[]"]), [[text], []])
            except plpy.SPIError as own:
                own_fields = database_error_fields(own)
                if not own_fields["sqlstate"].startswith(DATA[:2]):  # a cancel or a time-out
                    raise
                return RefusalError(
                    own_fields["sqlstate"],
                    f'feature "{name}" of row{number} cannot be computed: {own_fields["message"]}',
                    detail=f"The model computes it as {expression}.",
                    hint="Correct the row, or leave it out.",
                )
    return RefusalError(fields["sqlstate"], fields["message"], detail=fields["detail"], hint=fields["hint"])


_computations: OrderedDict[tuple[int, str], Computation] = OrderedDict()
