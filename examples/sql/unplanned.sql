-- Waits until one of the three jobs runs and another waits for memory, shows the jobs, and cancels them.
do $$
declare
  deadline constant timestamptz := clock_timestamp() + interval '90 seconds';
begin
  loop
    exit when exists (select from tensile.stat_jobs where state = 'running')
          and exists (select from tensile.stat_queue where phase = 'waiting for memory' and waits_for is not null);
    exit when not exists (select from tensile.stat_jobs where state in ('queued', 'starting', 'running'));
    exit when clock_timestamp() > deadline;
    perform pg_sleep(0.1);
    commit;
  end loop;
end
$$;
select j.job_id as job, j.model, j.state, coalesce(q.waits_for, '') as waits_for
  from tensile.stat_jobs as j left join tensile.stat_queue as q using (job_id)
 where j.state in ('queued', 'starting', 'running')
 order by j.job_id;
select count(tensile_cancel(job_id)) as cancelled
  from tensile.stat_jobs where state in ('queued', 'starting', 'running');
