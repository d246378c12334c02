-- Which tumours are malignant? A network and boosting compete, and the better one is examined.
--
--   .venv/bin/tensile psql -f examples/worked/diagnosis.sql
--
-- The table breast_cancer is the Wisconsin data set that scikit-learn ships: 569 tumours with 30 measurements each.
\if :{?epochs}
\else
  \set epochs 60
\endif
set client_min_messages = warning;
select tensile_load_dataset('breast_cancer') where to_regclass('breast_cancer') is null;

\echo 'both trainings divide the rows in the same way; with if_better the second one is deployed only if it is better'
call tensile_train_and_wait('diagnosis', 'breast_cancer', 'target', metric => 'roc_auc', architecture => 'tabm',
  hyperparams => jsonb_build_object('epochs', :epochs, 'class_weight', 'balanced'),
  early_stop => '{"metric": "roc_auc"}');
call tensile_train_and_wait('diagnosis', 'breast_cancer', 'target', metric => 'roc_auc', architecture => 'boosting',
  hyperparams => '{"class_weight": "balanced"}');
select version, architecture ->> 'type' as network, round(metric::numeric, 4) as roc_auc, deployed
  from tensile_training_info('diagnosis') order by version;

\echo 'where it errs, on tumours that it has not seen'
select * from tensile_confusion_matrix('diagnosis');

\echo 'how many malignant tumours are found if at most one benign tumour in twenty is reported'
select max(true_positive_rate) as found from tensile_roc_curve('diagnosis', 'malignant') where false_positive_rate <= 0.05;

\echo 'can its probabilities be believed?'
select bin, round(mean_predicted::numeric, 2) as predicted, round(observed_share::numeric, 2) as observed, rows
  from tensile_calibration('diagnosis', bins => 5);

\echo 'which measurements matter, and which ones decided about one tumour'
select feature, round(importance::numeric, 4) as importance from tensile_feature_importance('diagnosis', relation => 'breast_cancer') limit 5;
select e.feature, round(e.attribution::numeric, 3) as attribution
  from breast_cancer as b, tensile_explain_prediction('diagnosis', b) as e
 where b.id = 1 order by abs(e.attribution) desc limit 5;
