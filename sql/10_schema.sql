-- The schema and the enum types.
-- All names are qualified with their schema, so that they do not depend on search_path. The script pins search_path all
-- the same: a superuser runs it, and under `create extension` it could find functions of other roles in schema public.

set local search_path = pg_catalog, pg_temp;

do $$
begin
  if exists (select from pg_catalog.pg_namespace where nspname = 'tensile') then
    raise exception 'schema "tensile" already exists in database "%"', pg_catalog.current_database()
      using errcode = 'duplicate_schema',
            detail = 'The catalog is installed here already, by "create extension" or by "tensile init".',
            hint = 'To see its version: select tensile.catalog_version(). '
                   'To install it again, first drop the extension or the schema.';
  end if;
end
$$;

create schema tensile;
comment on schema tensile is 'indb-tensile: jobs, models, plans and latencies; users call public.tensile_...()';

create type tensile.job_state as enum ('queued', 'starting', 'running', 'succeeded', 'failed', 'cancelled');
comment on type tensile.job_state is
  'queued: waits for a worker; starting: claimed by a worker that reads the table and plans memory; running: trains; '
  'succeeded: its version is published; failed: ended by an error, see the columns error_...; cancelled: stopped on '
  'request';

create type tensile.job_phase as enum (
  'reading', 'capturing', 'calibrating', 'waiting for memory', 'training', 'validating', 'publishing',
  'paused', 'parked', 'predicting');
comment on type tensile.job_phase is
  'reading: reads the table into tensors; capturing: records one training step as a graph; calibrating: measures '
  'operators without a known latency; waiting for memory: to calibrate or to train; training; validating; publishing: '
  'evaluates and stores the version, without device memory; paused: on request, with its state in host memory and '
  'without device memory; parked: the same, decided by the controller; predicting: computes and stores the predictions '
  'of tensile_predict_into';

create type tensile.task as enum ('classification', 'regression', 'multilabel', 'forecast', 'anomaly', 'pairs');
comment on type tensile.task is
  'classification: predicts a label out of a set; regression: predicts a number or several; multilabel: predicts a set '
  'of labels; forecast: predicts the next steps of series; anomaly: scores how unlike the others a row is; pairs: learns which '
  'items go with a query';

create type tensile.checkpoint_store as enum ('local', 'catalog');
comment on type tensile.checkpoint_store is
  'local: a file on the host that trained the job; catalog: rows of checkpoint_chunks, which every host can read';

create type tensile.copy_way as enum ('out', 'in');
comment on type tensile.copy_way is 'out: from the device to its host; in: from the host to the device';
