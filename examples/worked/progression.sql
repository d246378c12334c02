-- How far will the illness go, and how sure is that? Three trainings give a middle and both ends of an interval.
--
--   .venv/bin/tensile psql -f examples/worked/progression.sql
--
-- The table diabetes is a data set that scikit-learn ships: 442 patients, and a measure of progression after one year.
\if :{?epochs}
\else
  \set epochs 200
\endif
set client_min_messages = warning;
select tensile_load_dataset('diabetes') where to_regclass('diabetes') is null;

\echo 'a quantile q is a value below which the truth is with the probability q'
begin;
select tensile_train('progression_' || level, 'diabetes', 'target', 'regression', architecture => 'residual_mlp',
         metric => 'mae', early_stop => '{}', hyperparams => jsonb_build_object('epochs', :epochs, 'loss', 'quantile', 'quantile', q))
  from (values ('low', 0.1), ('median', 0.5), ('high', 0.9)) as v (level, q);
commit;
select tensile_wait(job_id, timeout => null) from tensile.stat_jobs where model like 'progression\_%' and finished_at is null;

\echo 'how the training of the median went'
select epoch, round(loss::numeric, 3) as loss, round(valid_loss::numeric, 3) as valid_loss, published
  from tensile_training_history('progression_median') where epoch <= 3 or published order by epoch;

\echo 'patients with the interval, and how often it holds the truth for patients who were not learned from'
select id, target as truth, round(tensile_predict('progression_low', d)) as low,
       round(tensile_predict('progression_median', d)) as median, round(tensile_predict('progression_high', d)) as high
  from diabetes as d order by id limit 5;
select round(avg((target between low.value and high.value)::int), 2) as within
  from diabetes as d
  join tensile_split('progression_low') as s on (s.key ->> 'id')::bigint = d.id and s.part in ('valid', 'test')
  join tensile_predict_table('progression_low', 'diabetes') as low on (low.key ->> 'id')::bigint = d.id
  join tensile_predict_table('progression_high', 'diabetes') as high on (high.key ->> 'id')::bigint = d.id;
