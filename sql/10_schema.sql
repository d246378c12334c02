-- The schema and the closed sets of words.
-- Everything is named with its schema, so that no search_path changes what is meant. The path is set all the same:
-- a superuser runs this script, and `create extension` would let it find functions that others wrote in schema public.

set local search_path = pg_catalog, pg_temp;

do $$
begin
  if exists (select from pg_catalog.pg_namespace where nspname = 'tensile') then
    raise exception 'schema "tensile" already exists in database "%"', pg_catalog.current_database()
      using errcode = 'duplicate_schema',
            detail = 'The catalog is installed here already, by "create extension" or by "tensile init".',
            hint = 'Ask it for its version: select tensile.catalog_version(). '
                   'To install it anew, drop the extension, or the schema, first.';
  end if;
end
$$;

create schema tensile;
comment on schema tensile is 'indb-tensile: jobs, models, plans and latencies; users call public.tensile_…()';

create type tensile.job_state as enum ('queued', 'starting', 'running', 'succeeded', 'failed', 'cancelled');
comment on type tensile.job_state is
  'queued: waits for a worker; starting: claimed, reads and plans; running: trains; '
  'succeeded: its version is published; failed: see its error; cancelled: stopped because its owner asked';

create type tensile.job_phase as enum (
  'reading', 'capturing', 'calibrating', 'waiting for memory', 'training', 'validating', 'publishing');
comment on type tensile.job_phase is
  'reading: the table becomes tensors; capturing: one step becomes a graph; calibrating: unknown operators are '
  'measured; waiting for memory: to be measured in, or to train in; training; validating; publishing: the version is stored';

create type tensile.task as enum ('classification', 'regression');
comment on type tensile.task is 'classification: a label out of a set; regression: a number';

create type tensile.checkpoint_store as enum ('local', 'catalog');
comment on type tensile.checkpoint_store is
  'local: a file on the host that trained the job; catalog: rows of checkpoint_chunks, which every host can read';

create type tensile.copy_way as enum ('out', 'in');
comment on type tensile.copy_way is 'out: from the device to its host; in: from the host to the device';
