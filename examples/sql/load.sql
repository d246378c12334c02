-- Three real data sets as tables of your own; nothing is downloaded.
select name, tensile_load_dataset(name) as rows
  from unnest(array['digits', 'breast_cancer', 'diabetes']) as name
 where to_regclass(name) is null;
