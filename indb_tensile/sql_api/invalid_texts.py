"""Says where a text is not valid UTF-8, after PostgreSQL has refused to hand one over to PL/Python.

Only a database in SQL_ASCII has such texts.
"""

from ..request.invalid_text_hint import conversion_hint
from ..request.json_text import json_text
from ..request.request_fields import read_names
from .spi import Json, Plpy, fetch


def with_place(plpy: Plpy, request: Json, error: dict[str, str]) -> dict[str, str]:
    """Return PostgreSQL's error with the column and the row at fault, if they can be found, and the way out."""
    relation, place, column = request.get("relation"), None, None
    if isinstance(relation, int) and not isinstance(relation, bool):
        row = fetch(plpy, PLACE, relation, json_text(read_names(request, "exclude") or []))[0]
        place, column = row["place"], row["name"]
    if place is None and (role := fetch(plpy, ROLE)[0])["shown"] is not None:
        place = f'the name of role "{role["shown"]}"'
    is_name = place is not None and column is None
    return error | {
        "message": f"{place or 'a text or a name'} is not valid UTF-8",
        "detail": f"PostgreSQL says: {error['message']}. The encoding of the database is SQL_ASCII, in which "
        "PostgreSQL accepts any bytes.",
        "hint": "Rename it, with a name in UTF-8." if is_name else conversion_hint(column or "the_column"),
    }


ROLE = """
select tensile.shown_text(current_user) as shown
 where tensile.invalid_byte(current_user) is not null
union all
select null"""
PLACE = """
select place, name
  from tensile.invalid_place($1::oid, array(select pg_catalog.jsonb_array_elements_text($2::jsonb)))"""
