-- The bridge from SQL to Python, and the functions that raise its errors.

-- The body is a loader: it holds the text of each module of indb_tensile/sql_api and indb_tensile/request as a literal
-- (indb_tensile/catalog/bridge_sources.py), and imports a module when a session first needs it, as part of a package
-- whose name contains the digest of all. So the modules import one another as in the source tree, and after an upgrade
-- within a session the new modules are loaded and never mixed with the old ones. The installer computes the digest,
-- because every session would need some milliseconds for it. GD keeps the package. SD belongs to this function alone and
-- shows later calls that the package is loaded. The rows to predict are an argument of their own, so that they are not
-- parsed as part of the request.
create function tensile.bridge(verb text, request jsonb, rows jsonb[] default null) returns jsonb
  language plpython3u volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
as $bridge$
import sys

if "package" not in SD:
    import importlib
    from importlib.machinery import ModuleSpec

    sources = @BRIDGE_SOURCES@
    package = "tensile_bridge_@BRIDGE_DIGEST@"
    texts = {package + name: source for name, source in sources.items()}
    folders = {name.rpartition(".")[0] for name in texts}

    class Texts:
        """Finds the package's modules and runs them; tracebacks ask it for their lines."""

        def find_spec(self, name, path=None, target=None):
            return ModuleSpec(name, self, is_package=name in folders) if name in texts else None

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            name = module.__name__
            exec(compile(texts[name], name.replace(".", "/") + ".py", "exec"), module.__dict__)

        def get_source(self, name):
            return texts[name]

    if package not in GD:
        finder = Texts()
        sys.meta_path.append(finder)
        try:
            GD[package] = importlib.import_module(package + ".sql_api")
        finally:
            sys.meta_path.remove(finder)
    SD["package"] = GD["tensile_bridge"] = GD[package]

# Python finds the modules only during a call: nothing else in the session looks for its modules here.
sys.meta_path.append(SD["package"].__spec__.loader)
try:
    return SD["package"].answer(plpy, verb, request, rows)
finally:
    sys.meta_path.remove(SD["package"].__spec__.loader)
$bridge$;
comment on function tensile.bridge(text, jsonb, jsonb[]) is
  'checks and enqueues a request, or sends it to the service, with the caller''s privileges; the result contains any '
  'error';

-- A value-per-call function: below a select list, PostgreSQL takes one page after another and stores none. The caller has
-- prepared the reading with tensile.call, which has loaded the package. The function is volatile because PostgreSQL lets
-- no other function fetch from a cursor.
create function tensile.prediction_pages(reading bigint, snapshot text default null)
  returns table (keys text, numbers text, labels text, probabilities text, targets text, error text)
  language plpython3u volatile parallel unsafe rows 100
  set search_path = pg_catalog, pg_temp
as $$
if "tensile_bridge" not in GD:
    plpy.error("no reading is prepared in this session", sqlstate="55000", hint="Call tensile_predict_table.")
yield from GD["tensile_bridge"].prediction_pages(plpy, reading, snapshot)
$$;
comment on function tensile.prediction_pages(bigint, text) is
  'returns the answers of a reading that tensile_predict_table has prepared, some thousand rows a page: keys, values, '
  'labels, probabilities and several targets as texts of lists, and any error. With a snapshot that the transaction has '
  'exported, the service may read the rows';

create function tensile.raise_error(code text, message text, more text, way_out text) returns void
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
begin
  -- PostgreSQL would show an empty DETAIL or HINT.
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

-- Errors are raised by PL/pgSQL, because PL/Python would put the class of its exception before each message. Each
-- PL/pgSQL function between the client and the error adds a line of CONTEXT, and the function that raises the error adds
-- one too, which nothing can prevent. So functions that a user may call for one row raise the errors of answers
-- themselves: the installer writes sql/fragments/raise_answer.sql, which reads the variable `answer`, in place of the
-- placeholder RAISE_ANSWER, and sql/fragments/require_user.sql in place of REQUIRE_USER. Other public functions call
-- this function from SQL that PostgreSQL inlines.
--
-- All roles may execute this function, because public functions that all roles may call need it. A role without USAGE
-- on the schema cannot call it by name.
create function tensile.call(verb text, request jsonb, rows jsonb[] default null) returns jsonb
  language plpgsql volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
  set synchronize_seqscans = off  -- a snapshot has the rows in the table's own order
as $$
declare
  answer jsonb;
begin
  @REQUIRE_USER@
  answer := tensile.answer(verb, request, rows);
  @RAISE_ANSWER@
  return answer -> 'result';
end
$$;
comment on function tensile.call(text, jsonb, jsonb[]) is
  'returns the result of tensile.bridge, or raises its error; raises an error for a role that is not a member of '
  'tensile_user';

-- Returns null for a page without an error: the function is strict.
create function tensile.page_error(error text) returns text
  language plpgsql stable strict
  set search_path = pg_catalog, pg_temp
as $$
declare
  answer constant jsonb := jsonb_build_object('ok', false, 'error', error::jsonb);
begin
  @RAISE_ANSWER@
end
$$;
comment on function tensile.page_error(text) is 'raises the error of a page of tensile.prediction_pages';

revoke execute on function tensile.bridge(text, jsonb, jsonb[]), tensile.raise_error(text, text, text, text),
  tensile.prediction_pages(bigint, text), tensile.page_error(text) from public;
grant execute on function tensile.bridge(text, jsonb, jsonb[]), tensile.raise_error(text, text, text, text) to tensile_user;
-- PostgreSQL checks these two before tensile.call can tell a role which membership it lacks.
grant execute on function tensile.prediction_pages(bigint, text), tensile.page_error(text) to public;
grant execute on function tensile.call(text, jsonb, jsonb[]) to public;  -- 0.1.0 has revoked that

-- No SQL statement tells whether a procedure may commit. In a transaction block and below a function, PostgreSQL
-- refuses to commit with the error "invalid transaction termination". PL/Python can catch this error. PL/pgSQL cannot,
-- because its exception handler is a subtransaction, in which no commit is possible.
create procedure tensile.try_commit(inout committed boolean default null)
  language plpython3u
as $$
try:
    plpy.commit()
    return {"committed": True}
except plpy.SPIError:
    return {"committed": False}
$$;
comment on procedure tensile.try_commit(boolean) is
  'commits and returns true, or returns false if the caller cannot commit';
revoke execute on procedure tensile.try_commit(boolean) from public;
grant execute on procedure tensile.try_commit(boolean) to tensile_user;
