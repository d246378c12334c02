"""Calls of SQL functions by named arguments, as SQLAlchemy expressions. All values are bound parameters."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Boolean, ColumnElement, Integer, Interval, Text, cast, func, literal
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, REGCLASS
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import Function
from sqlalchemy.sql.visitors import InternalTraversal
from sqlalchemy.types import DateTime, TypeEngine

SqlType = TypeEngine[Any]
TEXT: SqlType = Text()
TEXTS: SqlType = ARRAY(Text())
JSON: SqlType = JSONB(none_as_null=True)
BOOLEAN: SqlType = Boolean()
INTEGER: SqlType = Integer()
BIGINT: SqlType = BigInteger()
BIGINTS: SqlType = ARRAY(BigInteger())
MOMENT: SqlType = DateTime(timezone=True)
DURATION: SqlType = Interval()
RELATION: SqlType = REGCLASS()


class NamedArgument(ColumnElement[Any]):
    """One argument of a call in named notation: `name => value`."""

    inherit_cache = True
    _traverse_internals = [  # noqa: RUF012 - SQLAlchemy's own protocol for the key of a cached statement
        ("name", InternalTraversal.dp_string),
        ("value", InternalTraversal.dp_clauseelement),
    ]

    def __init__(self, name: str, value: ColumnElement[Any]) -> None:
        self.name = name
        self.value = value
        self.type = value.type


@compiles(NamedArgument)
def _write_argument(element: NamedArgument, compiler: SQLCompiler, **options: Any) -> str:
    return f"{compiler.preparer.quote(element.name)} => {compiler.process(element.value, **options)}"


def function_call(
    name: str, types: Mapping[str, TypeEngine[Any]], arguments: Mapping[str, Any], returns: TypeEngine[Any]
) -> Function[Any]:
    """Return a call of `public.NAME` with those arguments that are not None, each cast to its type.

    The names of the arguments are keys of `types`: no user chooses them.
    """
    passed = [
        NamedArgument(argument, _typed(value, types[argument]))
        for argument, value in arguments.items()
        if value is not None
    ]
    call: Function[Any] = getattr(func.public, name)(*passed, type_=returns)
    return call


def _typed(value: Any, type_: TypeEngine[Any]) -> ColumnElement[Any]:
    # The cast makes PostgreSQL choose the function by its declared types, and not by those that the driver sends.
    return cast(literal(value, Text() if isinstance(type_, REGCLASS) else type_), type_)
