"""Checks who may read a table, and writes the GRANT statements that a role lacks."""

from collections.abc import Sequence

from ..request.copyable_relation import GRANTS, missing_grants
from ..request.json_text import json_text
from .refusals import DENIED, RefusalError
from .spi import Plpy, Row, fetch, qualified

READER = "tensile_reader"  # the role with which trainers read tables


def check_caller(plpy: Plpy, facts: Row) -> None:
    """Refuse a relation that the caller may not read.

    `facts` is the relation's row of `relation.RELATION`.
    """
    statements = []
    caller = plpy.quote_ident(facts["caller"])
    if not facts["caller_enters"]:
        statements.append(f"grant usage on schema {plpy.quote_ident(facts['schema'])} to {caller};")
    if not facts["caller_reads"]:
        statements.append(f"grant select on {qualified(plpy, facts['schema'], facts['name'])} to {caller};")
    if statements:
        subject = f'"{facts["schema"]}.{facts["name"]}"'
        hint = f"Ask its owner for: {' '.join(statements)}"
        raise RefusalError(DENIED, f"permission denied for table {subject}", hint=hint)


def check_reader(plpy: Plpy, oid: int, subject: str, columns: Sequence[str]) -> None:
    """Refuse a relation if the trainers' role may not read these columns.

    The role needs the columns of every partition that holds rows.
    """
    rows = fetch(plpy, GRANTS, oid, READER, json_text(list(columns)))
    statements = missing_grants(rows, READER, plpy.quote_ident)
    if statements:
        raise RefusalError(
            DENIED,
            f"the role {READER} may not read {subject}",
            detail="Trainers read tables as this role: it needs SELECT on every partition and child that holds rows, "
            "and USAGE on their schemas. With snapshot => true they read a copy that the caller's session writes.",
            hint=f"Run: {' '.join(statements)}",
        )


def let_reader_read(plpy: Plpy, table: str, schema: str) -> None:
    """Grant the trainers' role the rights to read the caller's new table.

    If the caller may not grant the right to use the schema, a NOTICE says who must.
    """
    plpy.execute(f"grant select on {table} to {READER}")
    facts = fetch(plpy, READER_MAY_ENTER, schema)[0]
    if facts["enters"]:
        return
    grant = f"grant usage on schema {plpy.quote_ident(facts['schema'])} to {READER}"
    if facts["mine"]:
        plpy.execute(grant)
    else:
        plpy.notice(f"{READER} may not use the schema yet; the schema's owner must run: {grant};")


READER_MAY_ENTER = """
select n.nspname as schema, has_schema_privilege('tensile_reader', n.oid, 'usage') as enters,
       pg_has_role(n.nspowner, 'usage') as mine
  from pg_catalog.pg_namespace as n where n.nspname = $1::text"""
