-- Traces: a job's owner asks for the recording of some iterations, and the job's trainer sees it at its next progress
-- report, records them and stores them here. Beside them stands the job's step graph, which plans and traces refer to.

alter table tensile.traces enable row level security;
alter table tensile.job_graphs enable row level security;

-- Only columns, because a privilege on the whole table would allow users to lock it.
-- A statement of a monitor is no error, but returns no row, because no policy gives it one.
grant select on tensile.traces to tensile_user, tensile_monitor, tensile_worker;
grant insert (job_id, iterations, seconds, starts_at, requested_at),
  update (iterations, seconds, starts_at, requested_at) on tensile.traces to tensile_user;
grant update (recording, recorded_at) on tensile.traces to tensile_worker;
grant select on tensile.job_graphs to tensile_user, tensile_monitor, tensile_worker;
grant insert (job_id, graph, written_at), update (graph, written_at) on tensile.job_graphs to tensile_worker;

create policy traces_of_owner on tensile.traces to tensile_user
  using (exists (select from tensile.jobs as j
                  where j.job_id = traces.job_id and j.owner_oid = (select tensile.current_role_oid())
                    and j.installation = (select tensile.installation())))
  with check (exists (select from tensile.jobs as j
                       where j.job_id = traces.job_id and j.owner_oid = (select tensile.current_role_oid())
                         and j.installation = (select tensile.installation())));
create policy traces_worked on tensile.traces to tensile_worker using (true) with check (true);
-- Those who see a job see its graph, as they see its plans.
create policy graphs_of_job on tensile.job_graphs for select to tensile_user
  using (exists (select from tensile.jobs as j where j.job_id = job_graphs.job_id));
create policy graphs_monitored on tensile.job_graphs for select to tensile_monitor using (true);
create policy graphs_worked on tensile.job_graphs to tensile_worker using (true) with check (true);

create function public.tensile_trace(job bigint, iterations integer default 5, seconds double precision default 10,
                                     starts_in double precision default 0)
  returns timestamptz
  language plpgsql volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
declare
  mine record;
  asked_at constant timestamptz := clock_timestamp();
begin
  perform public.tensile_require_role('tensile_user');
  if iterations is null or iterations not between 1 and 1000 then
    raise exception 'iterations is %', coalesce(iterations::text, 'null')
      using errcode = case when iterations is null then 'null_value_not_allowed' else 'invalid_parameter_value' end,
            detail = 'A trace has from 1 to 1000 iterations.', hint = 'Five iterations are enough to see a plan.';
  end if;
  if seconds is null or not seconds between 0 and 60 then
    raise exception 'seconds is %', coalesce(seconds::text, 'null')
      using errcode = case when seconds is null then 'null_value_not_allowed' else 'invalid_parameter_value' end,
            detail = 'A recording takes from 0 to 60 seconds, and at least one iteration.',
            hint = 'Give a number of seconds, such as 10.';
  end if;
  if starts_in is null or not starts_in between 0 and 60 then
    raise exception 'starts_in is %', coalesce(starts_in::text, 'null')
      using errcode = case when starts_in is null then 'null_value_not_allowed' else 'invalid_parameter_value' end,
            detail = 'A recording begins from 0 to 60 seconds after the request.',
            hint = 'Give a number of seconds, such as 0.';
  end if;
  select j.state, j.finished_at, j.owner_oid = (select tensile.current_role_oid()) as is_mine,
         j.spec #>> '{architecture,type}' as network, j.spec ? 'predict' as predicts
    into mine from tensile.jobs as j where j.job_id = job;
  if not found then
    perform tensile.raise_no_job(job);
  elsif not mine.is_mine then
    raise exception 'job % belongs to another role', job
      using errcode = 'insufficient_privilege',
            detail = format('Role "%s" may see the job, and may not trace it.', current_user),
            hint = 'Its owner can trace it.';
  elsif mine.finished_at is not null then
    raise exception 'job % has ended: %', job, mine.state
      using errcode = 'object_not_in_prerequisite_state',
            detail = format('It ended at %s. A trace shows iterations of a running job.', mine.finished_at),
            hint = 'For the plan of its iterations: tensile plan ' || job || ' --picture plan.svg';
  elsif mine.state = 'queued' then
    raise exception 'job % has not started', job
      using errcode = 'object_not_in_prerequisite_state',
            detail = 'It is queued. A trace shows iterations of a running job.',
            hint = 'To see what it waits for: select * from tensile.stat_queue;';
  elsif mine.predicts or mine.network in ('boosting', 'linear') then
    raise exception 'job % runs no training step', job
      using errcode = 'object_not_in_prerequisite_state',
            detail = case when mine.predicts then 'It predicts a relation.'
                          else format('The model "%s" has no network.', mine.network) end,
            hint = 'Trace the training of a network.';
  end if;
  insert into tensile.traces as t (job_id, iterations, seconds, starts_at, requested_at)
  values (job, tensile_trace.iterations, tensile_trace.seconds, asked_at + make_interval(secs => starts_in), asked_at)
  on conflict (job_id) do update
     set iterations = excluded.iterations, seconds = excluded.seconds, starts_at = excluded.starts_at,
         requested_at = excluded.requested_at;
  return asked_at;
end
$$;
comment on function public.tensile_trace(bigint, integer, double precision, double precision) is
  'asks the trainer of a running job to record its next iterations, as tensile trace does; returns the time of the '
  'request. The recording is in tensile.traces once its recorded_at is not earlier than that';
