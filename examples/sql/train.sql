-- Enqueues three trainings in one transaction. Others, and the controller, see the jobs once it commits.
begin;
select model, tensile_train(model, model::regclass) as job
  from unnest(array['digits', 'breast_cancer', 'diabetes']) as model;
commit;
