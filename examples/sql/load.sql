-- Loads three real data sets as tables of the current user. Nothing is downloaded.
select name, tensile_load_dataset(name) as rows
  from unnest(array['digits', 'breast_cancer', 'diabetes']) as name
 where to_regclass(name) is null;
