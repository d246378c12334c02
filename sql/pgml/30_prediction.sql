-- The functions that predict. Features are a row, a record, or an array of the features' values in their order. The first
-- argument is the name of a project, or the id of a model as pgml.models lists it.

create or replace function pgml.version_of(
  model_id bigint, out project text, out number integer
)
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform public.tensile_require_role('tensile_user');
  select m.name, v.number into project, number
    from tensile.model_versions as v join tensile.models as m on m.model_id = v.model_id
   where v.version_id = version_of.model_id and m.dropped_at is null;
  if not found then
    raise exception 'there is no model %', coalesce(version_of.model_id::text, 'null')
      using errcode = 'undefined_object', hint = 'See your models: select id, name from pgml.trained_models;';
  end if;
end
$$;
comment on function pgml.version_of(bigint) is
  'returns the project and the number of the version that pgml.models lists with this id';

create or replace function pgml.predict(project_name text, features anycompatible) returns double precision
  language plpgsql stable parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
begin
  return public.tensile_predict(project_name, features);
end
$$;
comment on function pgml.predict(text, anycompatible) is
  'predicts for a row with the deployed model of a project: the value of a regression, or the label if labels are '
  'numbers or booleans; tensile_predict_label returns labels that are texts';

create or replace function pgml.predict(model_id bigint, features anycompatible) returns double precision
  language plpgsql stable parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
declare
  used record;
begin
  used := pgml.version_of(model_id);
  return public.tensile_predict(used.project, features, used.number);
end
$$;
comment on function pgml.predict(bigint, anycompatible) is 'predicts for a row with the model of this id';

create or replace function pgml.probabilities(project text, features anycompatible, number integer)
  returns double precision[]
  language plpgsql stable parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
declare
  found_any boolean;
  listed double precision[];
begin
  -- Numbers are in the order of their values, other labels in the order of their characters' codes, as networks have
  -- their outputs.
  select count(*) > 0,
         array_agg(p.probability order by case when p.label ~ '^-?[0-9.]+(e[+-]?[0-9]+)?$' then p.label::numeric end,
                                          p.label collate "C")
    into found_any, listed
    from public.tensile_predict_proba(project, features, number) as p;
  return case when found_any then listed end;
end
$$;
comment on function pgml.probabilities(text, anycompatible, integer) is
  'implements pgml.predict_proba: returns the probability of each class in the order of the classes; null for null';

create or replace function pgml.predict_proba(project_name text, features anycompatible) returns double precision[]
  language plpgsql stable parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform public.tensile_require_role('tensile_user');
  return pgml.probabilities(project_name, features, null);
end
$$;
comment on function pgml.predict_proba(text, anycompatible) is
  'predicts for a row: returns the probability of each class, in the order of the classes';

create or replace function pgml.predict_proba(model_id bigint, features anycompatible) returns double precision[]
  language plpgsql stable parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
declare
  used record;
begin
  used := pgml.version_of(model_id);
  return pgml.probabilities(used.project, features, used.number);
end
$$;
comment on function pgml.predict_proba(bigint, anycompatible) is
  'predicts for a row with the model of this id: returns the probability of each class, in the order of the classes';

-- Functions of SQL, because PL/pgSQL does not accept an array of anonymous records.
create or replace function pgml.batch(project text, features anycompatiblearray, number integer)
  returns double precision[]
  language sql stable parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
  select public.tensile_predict_batch(project,
    case when array_ndims(features) = 1 and pg_typeof(features) = any (
                array['real[]', 'double precision[]', 'numeric[]', 'smallint[]', 'integer[]', 'bigint[]',
                      'boolean[]']::regtype[])
         then array[features] else features end, number)
$$;
comment on function pgml.batch(text, anycompatiblearray, integer) is
  'implements pgml.predict_batch; a list of numbers is one row, as array_agg of such lists is one row for each';

create or replace function pgml.predict_batch(project_name text, features anycompatiblearray)
  returns setof double precision
  language sql stable parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$ select unnest(pgml.batch(project_name, features, null)) $$;
comment on function pgml.predict_batch(text, anycompatiblearray) is
  'predicts for many rows at once, in their order: select pgml.predict_batch(''p'', array_agg(t)) from t, or with '
  'array_agg of arrays';

create or replace function pgml.predict_batch(model_id bigint, features anycompatiblearray)
  returns double precision[]
  language sql stable parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$ select pgml.batch(v.project, features, v.number) from pgml.version_of(model_id) as v $$;
comment on function pgml.predict_batch(bigint, anycompatiblearray) is
  'predicts for many rows at once with the model of this id: returns an array in the order of the rows';
