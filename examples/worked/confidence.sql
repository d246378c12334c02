-- How far can the answers be trusted? Ensembles, calibrated probabilities, quantiles, and what the models look at.
--
--   .venv/bin/tensile psql -f examples/worked/confidence.sql
--
-- The tables are data sets that scikit-learn ships: breast_cancer has 569 tumours with 30 measurements each, and diabetes
-- has 442 patients with a measure of the progression of their illness after one year.
\if :{?epochs}
\else
  \set epochs 120
\endif
set client_min_messages = warning;
select tensile_load_dataset(name) from unnest(array['breast_cancer', 'diabetes']) as name where to_regclass(name) is null;

\echo 'one network, and five that differ only in their first weights and are one version'
call tensile_train_and_wait('tumour', 'breast_cancer', 'target', architecture => 'residual_mlp', metric => 'log_loss',
  deploy => 'always', hyperparams => jsonb_build_object('epochs', :epochs), early_stop => '{"metric": "log_loss"}');
call tensile_train_and_wait('tumour', 'breast_cancer', 'target', architecture => 'residual_mlp', metric => 'log_loss',
  deploy => 'always', hyperparams => jsonb_build_object('epochs', :epochs, 'ensemble', 5),
  early_stop => '{"metric": "log_loss"}');
select e.metric, round(max(e.value) filter (where i.version = 1)::numeric, 4) as one_network,
       round(max(e.value) filter (where i.version = 2)::numeric, 4) as five_networks
  from tensile_training_info('tumour') as i, tensile_evaluate('tumour', version => i.version) as e
 where e.metric in ('accuracy', 'log_loss', 'brier', 'calibration_error') group by e.metric order by e.metric;

\echo 'of the tumours that are called malignant with this probability, so many are'
select bin, round(mean_predicted::numeric, 2) as predicted, round(observed_share::numeric, 2) as observed, rows
  from tensile_calibration('tumour', bins => 5, label => 'malignant');

\echo 'by how much log_loss grows if the values of one measurement are mixed up among the tumours'
select feature, round(importance::numeric, 4) as importance, round(deviation::numeric, 4) as deviation
  from tensile_feature_importance('tumour', 'breast_cancer', repeats => 5, seed => 1)
 order by abs(importance) desc limit 5;

\echo 'quantiles of the progression, each by an ensemble: of patients who were not learned from, so many are between them'
begin;
select tensile_train('course_' || level, 'diabetes', 'target', 'regression', architecture => 'mlp', metric => 'mae',
         deploy => 'always', early_stop => '{}',
         hyperparams => jsonb_build_object('epochs', :epochs, 'loss', 'quantile', 'quantile', q, 'ensemble', 3))
  from (values ('low', 0.1), ('high', 0.9)) as v (level, q);
commit;
select tensile_wait(job_id, timeout => null) from tensile.stat_jobs where model like 'course\_%' and finished_at is null;
select s.part, round(avg((d.target between low.value and high.value)::int), 2) as within, count(*) as patients
  from diabetes as d
  join tensile_split('course_low') as s on (s.key ->> 'id')::bigint = d.id
  join tensile_predict_table('course_low', 'diabetes') as low on (low.key ->> 'id')::bigint = d.id
  join tensile_predict_table('course_high', 'diabetes') as high on (high.key ->> 'id')::bigint = d.id
 where s.part in ('valid', 'test') group by s.part order by s.part;
