"""Create functions of an untrusted role in tests, and read who ran them."""

from .conftest import Connection

# The arguments and the result of each function, by name. Each function fits its call better than PostgreSQL's own
# function of that name, which takes any type. It would be chosen although pg_catalog is searched first.
TRAPS = {
    "to_jsonb": ("text", "jsonb"),
    "format": ("text, regprocedure", "text"),
    "format (": ("text, name", "text"),
    "format  (": ("text, text, text", "text"),
    "jsonb_build_object": ("text, text, text, int, text, bigint", "jsonb"),
    "jsonb_build_object (": ("text, text, text, text", "jsonb"),
    "jsonb_build_array": ("jsonb", "jsonb"),
    "concat_ws": ("text, text, text", "text"),
}


def set_traps(role: Connection, schema: str) -> None:
    """Create functions of this role that record the role as which they run."""
    role.execute(
        "create table if not exists public.ran (name text, as_role name); grant insert on public.ran to public"
    )
    for name, (arguments, returns) in TRAPS.items():
        role.execute(
            f"""create function {schema}.{name.strip(" (")}({arguments}) returns {returns} language plpgsql
                as $$ begin insert into public.ran values ('{name}', current_user); return null; end $$""".encode()
        )


def trap_calls(connection: Connection) -> list[tuple[str, str]]:
    """Return the function and the role of each recorded call."""
    return connection.execute("select distinct name, as_role from public.ran order by 1, 2").fetchall()
