"""Writes the parameters of `tensile_train` into the SQL of every function that takes the same ones.

The parameters stand once, in the declaration of `public.tensile_train` in `sql/50_functions.sql`. In that file six
placeholders are replaced: `@TRAIN_PARAMETERS@` by the parameters with their types and defaults, `@TRAIN_ARGUMENTS@`
by their names, and `@TRAIN_FIELDS@` by the keys and values of the JSON request that the bridge reads. A training on a
query has the parameter `query` for `relation`, and no `snapshot`, because it always has one:
`@TRAIN_QUERY_PARAMETERS@` are its parameters, `@TRAIN_QUERY_NAMES@` their names, and `@TRAIN_QUERY_ARGUMENTS@` the
arguments with which it describes the request.
"""

import re

from indb_tensile.errors import InvariantError

_DECLARATION = re.compile(r"^create function public\.tensile_train\(\n(.*?)\n\) returns", re.MULTILINE | re.DOTALL)
_PARAMETER = re.compile(r"(\w+) ([\w\[\]]+)(?: default .+)?")
_WIDTH = 112  # columns of a generated line, which is about the width of the lines in sql/
_NOT_OF_QUERY = {"relation": "null", "snapshot": "false"}  # parameters that a training on a query does not have
# The key and the value in the request of a parameter of this type. Parameters of other types are passed unchanged.
_FIELDS = {"regclass": ("{}", "{}::oid::bigint"), "interval": ("{}_s", "extract(epoch from {})")}


def fill_train_signature(source: str, declaring: str) -> str:
    """Return `source` with the placeholders replaced. `declaring` is the text that declares `tensile_train`."""
    match = _DECLARATION.search(declaring)
    if match is None:
        raise InvariantError("the source of public.tensile_train is not as the generated functions expect")
    parameters = [_name_and_type(parameter.strip()) for parameter in match[1].split(",")]
    fields = []
    of_query = [_NOT_OF_QUERY.get(name, name) for name, _ in parameters]
    query_names = ["query" if name == "relation" else name for name, _ in parameters if name != "snapshot"]
    for name, type_name in parameters:
        key, value = _FIELDS.get(type_name, ("{}", "{}"))
        fields.append(f"'{key.format(name)}', {value.format(name)}")
    return (
        source.replace("@TRAIN_PARAMETERS@", match[1].strip())
        .replace("@TRAIN_ARGUMENTS@", _wrapped([name for name, _ in parameters], indent=6))
        .replace("@TRAIN_FIELDS@", _wrapped(fields, indent=4))
        .replace("@TRAIN_QUERY_PARAMETERS@", _of_query(match[1]).strip())
        .replace("@TRAIN_QUERY_ARGUMENTS@", _wrapped(of_query, indent=6))
        .replace("@TRAIN_QUERY_NAMES@", _wrapped(query_names, indent=6))
    )


def _of_query(parameters: str) -> str:
    """Return the parameters of a training on a query."""
    return parameters.replace("relation regclass", "query text").replace(", snapshot boolean default false", "")


def _name_and_type(parameter: str) -> tuple[str, str]:
    match = _PARAMETER.fullmatch(parameter)
    if match is None:
        raise InvariantError(
            f'the parameter "{parameter}" of public.tensile_train is not of the form: name type default value',
            hint="The installer splits the parameters at commas, so no type or default contains one.",
        )
    return match[1], match[2]


def _wrapped(items: list[str], *, indent: int) -> str:
    """Join the items by commas, in lines that are indented except for the first."""
    lines = [items[0]]
    for item in items[1:]:
        if indent + len(lines[-1]) + len(item) + 3 > _WIDTH:
            lines[-1] += ","
            lines.append(item)
        else:
            lines[-1] += f", {item}"
    return f"\n{' ' * indent}".join(lines)
