-- Which network reads handwritten digits best? A search tries sixteen, most of them only briefly.
--
--   .venv/bin/tensile psql -f examples/worked/search.sql
--
-- The table digits is a data set that scikit-learn ships: 1,797 images of 8 x 8 pixels.
\if :{?epochs}
\else
  \set epochs 27
\endif
\if :{?trials}
\else
  \set trials 16
\endif
set client_min_messages = warning;
select tensile_load_dataset('digits') where to_regclass('digits') is null;

call tensile_search_and_wait('digit_reader', 'digits', 'label', 'classification', trials => :trials,
  architecture => '{"choices": [
    {"type": "mlp", "hidden": {"choices": [[64], [256, 128]]}, "dropout": {"range": [0.0, 0.4]}},
    {"type": "cnn", "input_shape": [1, 8, 8], "channels": {"choices": [[16], [32, 64]]}}]}',
  hyperparams => jsonb_build_object('epochs', :epochs, 'batch_size', 64,
    'learning_rate', '{"range": [0.0003, 0.03], "log": true}'::jsonb));

\echo 'the trials, those that went furthest first'
select trial, state, epoch, round(metric::numeric, 4) as accuracy, parameters ->> 'architecture' as network,
       round((parameters ->> 'learning_rate')::numeric, 5) as learning_rate
  from tensile_trial_info((select max(search_id) from tensile.stat_searches));

\echo 'the search took this long, and its best trial predicts from now on'
select begun, trained, pruned, epochs_trained, best_trial, version, date_trunc('second', duration) as took
  from tensile.stat_searches order by search_id desc limit 1;
select round(avg((tensile_predict('digit_reader', d) = d.label)::int), 3) as correct from digits as d where id <= 200;
