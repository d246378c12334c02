-- Statements of search.py.

-- allow_login --
alter role {} login

-- grant_use --
grant tensile_user to current_user

-- search --
select public.tensile_search(%(model)s, %(table)s::regclass, target => %(target)s, trials => %(trials)s, parallel => %(parallel)s,
                             sampler => 'random', prune => %(prune)s, search_seed => %(seed)s,
                             architecture => %(architecture)s, hyperparams => %(hyperparams)s,
                             split => jsonb_build_object('seed', %(seed)s::integer), deploy => 'always')

-- ended --
select state::text, error_message from tensile.stat_searches
 where search_id = %(search)s and state in ('succeeded', 'failed', 'cancelled')

-- outcome --
-- The best metric on the validation rows, the metric of its version on the test rows, and the epochs of all trials.
select t.metric_name, t.metric, t.test_metric, s.epochs_trained, s.trained
  from tensile.stat_searches as s
  join tensile.jobs as j on j.job_id = s.search_id
  join tensile.model_versions as v on v.version_id = j.version_id
  join tensile.stat_trials as t on t.job_id = v.job_id
 where s.search_id = %(search)s

-- parameters --
select array_agg(parameters::text order by trial) from tensile.stat_trials where search_id = %(search)s
