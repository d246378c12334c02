-- Statements of published_times.py.

-- allow_login --
alter role {} login

-- grant_use --
grant tensile_user to current_user

-- train --
select public.tensile_train(%(model)s, %(table)s::regclass, target => %(target)s, task => %(task)s,
                            hyperparams => jsonb_build_object('seed', %(seed)s::integer),
                            split => jsonb_build_object('seed', %(seed)s::integer), deploy => 'always')

-- ended --
select state::text, error_message from tensile.jobs
 where job_id = %(job)s and state in ('succeeded', 'failed', 'cancelled')

-- version --
select architecture, training from tensile.model_versions where job_id = %(job)s
