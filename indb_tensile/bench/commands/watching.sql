-- Statements of watching.py.

-- allow_login --
alter role {} login

-- grant_use --
grant tensile_user to current_user

-- train --
select public.tensile_train('watched', 'public.digits'::regclass, target => 'label', exclude => array['id'],
                            architecture => jsonb_build_object('type', 'mlp', 'hidden', %(hidden)s::jsonb)::text,
                            hyperparams => '{"epochs": 100000, "batch_size": 128, "seed": 1}',
                            early_stop => '{"on": false}')

-- epoch --
-- The last epoch that has ended, and when.
select m.epoch, extract(epoch from clock_timestamp())::double precision
  from tensile.metrics as m
 where m.job_id = %(job)s
 order by m.epoch desc limit 1

-- cancel --
select public.tensile_cancel(%(job)s::bigint)

-- add_worker --
insert into tensile.workers (host, pid, device, version, lease_s) values ('recorded', 1, 'recorded', '0', 86400)
returning worker_id

-- add_jobs --
-- Ended jobs, which no controller claims.
insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec, state, started_at, finished_at)
select 'recorded', 1, 'public', 'recorded',
       '{"model": "recorded", "relation": {"oid": 1, "schema": "public", "name": "recorded"}, "target": "y",
         "task": "regression", "architecture": {"type": "mlp"}}',
       'succeeded', now(), now()
  from generate_series(1, %(jobs)s)
returning job_id
