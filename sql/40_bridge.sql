-- From SQL to Python, and an error's way back.

-- The body is a loader: it holds the text of each module of indb_tensile/sql_api as a literal, and imports them once
-- per session as a package named by their digest. So they import one another as they do in the tree, and a catalog
-- upgraded within a session is followed, its modules never mixed with those before. GD keeps the package; SD belongs
-- to this function alone and spares every later call the digest.
-- Rows to predict come beside the request: it need not be read as a whole to know them.
create function tensile.bridge(verb text, request jsonb, rows jsonb[] default null) returns jsonb
  language plpython3u volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
as $bridge$
if "answer" not in SD:
    import hashlib
    import importlib
    import sys
    from importlib.machinery import ModuleSpec

    sources = @SQL_API@
    package = "tensile_sql_api_" + hashlib.sha256(repr(sources).encode()).hexdigest()[:16]
    texts = {package + name: source for name, source in sources.items()}

    class Texts:
        """Finds the package's modules and runs them; tracebacks ask it for their lines."""

        def find_spec(self, name, path=None, target=None):
            return ModuleSpec(name, self, is_package=name == package) if name in texts else None

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            name = module.__name__
            exec(compile(texts[name], name.replace(".", "/") + ".py", "exec"), module.__dict__)

        def get_source(self, name):
            return texts[name]

    if package not in GD:
        finder = Texts()
        sys.meta_path.insert(0, finder)
        try:
            GD[package] = importlib.import_module(package)
        finally:
            sys.meta_path.remove(finder)
    SD["answer"] = GD[package].answer
return SD["answer"](plpy, verb, request, rows)
$bridge$;
comment on function tensile.bridge(text, jsonb, jsonb[]) is
  'checks and enqueues a request, or asks the service, with the caller''s privileges; the answer holds any error';

create function tensile.raise_error(code text, message text, more text, way_out text) returns void
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
begin
  -- An empty DETAIL or HINT would be shown as one.
  if more <> '' and way_out <> '' then
    raise exception '%', message using errcode = code, detail = more, hint = way_out;
  elsif more <> '' then
    raise exception '%', message using errcode = code, detail = more;
  elsif way_out <> '' then
    raise exception '%', message using errcode = code, hint = way_out;
  end if;
  raise exception '%', message using errcode = code;
end
$$;
comment on function tensile.raise_error(text, text, text, text) is
  'raises an error with this SQLSTATE, message, DETAIL and HINT';

-- PL/Python would put its exception's class before each message; raised here, a message arrives as it was written. Each
-- PL/pgSQL function between the client and the error is a line of CONTEXT, so this one raises itself, and public
-- functions call it from SQL that PostgreSQL inlines.
--
-- Everybody may execute it, as public functions that everybody may call reach it. Nobody reaches it by name without
-- USAGE on the schema.
create function tensile.call(verb text, request jsonb, rows jsonb[] default null) returns jsonb
  language plpgsql volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
  set synchronize_seqscans = off  -- a snapshot has the rows in the table's own order
as $$
declare
  answer jsonb;
  code text;
  message text;
  more text;
  way_out text;
begin
  perform public.tensile_require_role('tensile_user');
  answer := tensile.bridge(verb, request, rows);
  if (answer -> 'ok')::boolean then
    return answer -> 'result';
  end if;
  code := answer #>> '{error,sqlstate}';
  message := answer #>> '{error,message}';
  more := answer #>> '{error,detail}';
  way_out := answer #>> '{error,hint}';
  -- An empty DETAIL or HINT would be shown as one.
  if more <> '' and way_out <> '' then
    raise exception '%', message using errcode = code, detail = more, hint = way_out;
  elsif more <> '' then
    raise exception '%', message using errcode = code, detail = more;
  elsif way_out <> '' then
    raise exception '%', message using errcode = code, hint = way_out;
  end if;
  raise exception '%', message using errcode = code;
end
$$;
comment on function tensile.call(text, jsonb, jsonb[]) is
  'the result of tensile.bridge, or its error; raises for a role that is no member of tensile_user';

revoke execute on function tensile.bridge(text, jsonb, jsonb[]), tensile.raise_error(text, text, text, text) from public;
grant execute on function tensile.bridge(text, jsonb, jsonb[]), tensile.raise_error(text, text, text, text) to tensile_user;
grant execute on function tensile.call(text, jsonb, jsonb[]) to public;  -- 0.1.0 has revoked that

-- No SQL tells whether a procedure may commit: PostgreSQL refuses in a transaction block and below a function, and says
-- only "invalid transaction termination". PL/Python can catch that, where PL/pgSQL's handler would be a
-- subtransaction, in which nothing may commit.
create procedure tensile.try_commit(inout committed boolean default null)
  language plpython3u
as $$
try:
    plpy.commit()
    return {"committed": True}
except plpy.SPIError:
    return {"committed": False}
$$;
comment on procedure tensile.try_commit(boolean) is 'commits, and says so; false where the caller cannot commit';
revoke execute on procedure tensile.try_commit(boolean) from public;
grant execute on procedure tensile.try_commit(boolean) to tensile_user;
