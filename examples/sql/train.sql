-- Three trainings in one transaction: they exist for everybody, and for the controller, when it commits.
begin;
select model, tensile_train(model, model::regclass) as job
  from unnest(array['digits', 'breast_cancer', 'diabetes']) as model;
commit;
