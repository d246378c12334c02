"""Looks up the functions that an expression names: each must be a plain one of pg_catalog that changes nothing."""

from collections.abc import Iterable

from ..request.json_text import json_text
from .spi import Plpy, fetch


def refused_functions(plpy: Plpy, names: Iterable[str], *, stored: bool = False) -> dict[str, str]:
    """Return why a function of one of these names is refused, by the name.

    `stored` says that no generated column has shown that the expression is immutable. Then a name is refused if none
    of its functions is immutable: some others, such as table_to_xml, run SQL from a text with the rights of the role
    that predicts.
    """
    wanted = {_FUNCTIONS_OF_CALLS.get(name, name): name for name in names}
    if not wanted:
        return {}
    rows = fetch(plpy, REFUSED, json_text(list(wanted)), stored)
    return {wanted[row["name"]]: row["reason"] for row in rows}


_FUNCTIONS_OF_CALLS = {"trim": "btrim"}  # calls of the grammar and the functions that they stand for
REFUSED = """
select n.name as name,
       case when p.functions is null then 'pg_catalog has no such function'
            when p.aggregate then 'it is an aggregate or a window function, which needs many rows'
            when p.sets then 'it returns several rows'
            when p.volatile then 'it is volatile'
            else 'it is not immutable' end as reason
  from pg_catalog.jsonb_array_elements_text($1::pg_catalog.jsonb) as n (name)
  cross join lateral (
    select nullif(pg_catalog.count(*), 0) as functions,
           pg_catalog.bool_or(f.prokind operator(pg_catalog.<>) 'f') as aggregate,
           pg_catalog.bool_or(f.proretset) as sets,
           pg_catalog.bool_or(f.provolatile operator(pg_catalog.=) 'v') as volatile,
           pg_catalog.bool_or(f.provolatile operator(pg_catalog.=) 'i') as immutable
      from pg_catalog.pg_proc as f
     where f.pronamespace operator(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace
       and f.proname operator(pg_catalog.=) n.name) as p
 where p.functions is null or p.aggregate or p.sets or p.volatile or ($2::pg_catalog.bool and not p.immutable)"""
