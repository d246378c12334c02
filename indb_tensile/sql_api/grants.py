"""Who may read a table, and the statements that mend it where someone may not."""

from .errors import DENIED, RefusalError
from .spi import Plpy, Row, fetch, qualified


def check_grants(plpy: Plpy, facts: Row) -> None:
    """Refuse a table, given by its facts in the catalog, that the caller or the worker cannot read whole."""
    subject = f'"{facts["schema"]}.{facts["name"]}"'
    table = qualified(plpy, facts["schema"], facts["name"])
    if not (facts["caller_enters"] and facts["caller_reads"]):
        grants = _missing(plpy, facts, "caller", plpy.quote_ident(facts["caller"]))
        raise RefusalError(DENIED, f"permission denied for table {subject}", hint=f"Ask its owner for: {grants}")
    if facts["secured"]:
        raise RefusalError(
            DENIED,
            f"table {subject} has row-level security, which the worker does not see through",
            detail="Its policies decide by role, and the worker is not the role that asks.",
            hint=f"Train on the rows that you see: create table ... as select * from {table};",  # noqa: S608 - a hint
        )
    if not (facts["worker_enters"] and facts["worker_reads"]):
        grants = _missing(plpy, facts, "worker", "tensile_worker")
        raise RefusalError(DENIED, f"the worker may not read table {subject}", hint=f"Run: {grants}")


def let_worker_read(plpy: Plpy, table: str, schema: str) -> None:
    """Grant the worker what it needs of the caller's new table in this schema, or say who must."""
    plpy.execute(f"grant select on {table} to tensile_worker")
    facts = fetch(plpy, WORKER_MAY_ENTER, schema)[0]
    if facts["enters"]:
        return
    grant = f"grant usage on schema {plpy.quote_ident(facts['schema'])} to tensile_worker"
    if facts["mine"]:
        plpy.execute(grant)
    else:
        plpy.notice(f"the worker may not use the schema yet; its owner must run: {grant};")


def _missing(plpy: Plpy, facts: Row, who: str, role: str) -> str:
    """The grants that this one lacks, as statements."""
    statements = []
    if not facts[f"{who}_enters"]:
        statements.append(f"grant usage on schema {plpy.quote_ident(facts['schema'])} to {role};")
    if not facts[f"{who}_reads"]:
        statements.append(f"grant select on {qualified(plpy, facts['schema'], facts['name'])} to {role};")
    return " ".join(statements)


WORKER_MAY_ENTER = """
select n.nspname as schema, has_schema_privilege('tensile_worker', n.oid, 'usage') as enters,
       pg_has_role(n.nspowner, 'usage') as mine
  from pg_catalog.pg_namespace as n where n.nspname = $1::text"""
