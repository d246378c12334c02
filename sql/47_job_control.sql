-- Functions that repeat trainings, change priorities, and delete old rows.

create function tensile.repeat_job(job bigint, callers_path text) returns bigint
  language sql volatile parallel unsafe
  return (tensile.call('retry', pg_catalog.jsonb_build_object('job', job, 'search_path', callers_path))
            ->> 'job')::bigint;
comment on function tensile.repeat_job(bigint, text) is
  'implements tensile_retry; reads a view or a query under the caller''s search_path';

create function public.tensile_retry(job bigint) returns bigint
  language sql volatile parallel unsafe
  return tensile.repeat_job(job, pg_catalog.current_setting('search_path'));
comment on function public.tensile_retry(bigint) is
  'enqueues the request of a job that failed or was cancelled as a new job, and returns its number. The new job depends '
  'on the same jobs, or on their own newest repetitions';

create function tensile.repeat_training(model text, callers_path text) returns bigint
  language sql volatile parallel unsafe
  return (tensile.call('retrain', pg_catalog.jsonb_build_object('model', model, 'search_path', callers_path))
            ->> 'job')::bigint;
comment on function tensile.repeat_training(text, text) is
  'implements tensile_retrain; reads a view or a query under the caller''s search_path';

create function public.tensile_retrain(model text) returns bigint
  language sql volatile parallel unsafe
  return tensile.repeat_training(model, pg_catalog.current_setting('search_path'));
comment on function public.tensile_retrain(text) is
  'enqueues the last successful training of a model again, on the rows that its table or query has now, and returns the '
  'job''s number';

create function public.tensile_set_priority(job bigint, priority integer) returns void
  language plpgsql volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform public.tensile_require_role('tensile_user');
  if priority is null or priority not between -1000 and 1000 then
    raise exception 'priority is %', coalesce(priority::text, 'null')
      using errcode = case when priority is null then 'null_value_not_allowed' else 'invalid_parameter_value' end,
            detail = 'A priority is a number from -1000 to 1000.',
            hint = 'Of one owner''s jobs, those of a higher priority start first.';
  end if;
  update tensile.jobs as j set priority = tensile_set_priority.priority
   where j.job_id = job and j.state in ('queued', 'starting', 'running') and not j.cancel_requested;
  if not found then
    perform tensile.raise_no_change(job, 'change the priority of');
  end if;
end
$$;
comment on function public.tensile_set_priority(bigint, integer) is
  'changes the priority of a queued or active job; a controller that has the job divides its device anew, within a '
  'heartbeat';

create function public.tensile_vacuum() returns table (kind text, removed bigint)
  language plpgsql volatile parallel unsafe rows 10
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  step jsonb;
  totals jsonb := '{}';
  dropped bigint;
begin
  perform public.tensile_require_role('tensile_admin');
  loop
    select jsonb_object_agg(s.kind, s.removed) into step from tensile.vacuum_step(10000) as s;
    exit when step is null;
    select jsonb_object_agg(k.kind, coalesce((totals ->> k.kind)::bigint, 0) + coalesce((step ->> k.kind)::bigint, 0))
      into totals
      from (select jsonb_object_keys(totals || step) as kind) as k;
  end loop;
  dropped := tensile.drop_prediction_tables(1000);
  if dropped > 0 then
    totals := totals || jsonb_build_object('prediction tables', dropped);
  end if;
  return query select t.key, t.value::bigint from jsonb_each_text(totals) as t order by t.key;
end
$$;
comment on function public.tensile_vacuum() is
  'deletes all rows that are older than the retain_ settings allow, as tensile vacuum does, in one transaction; returns '
  'the number of rows of each kind, and of dropped tables of predictions that no view shows';
