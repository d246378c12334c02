-- pgml.train and pgml.train_and_wait. Both enqueue the training that tensile_train would enqueue.

-- Reading a request -------------------------------------------------------------------------------------------------

-- PostgresML reads a relation's name without SQL's rules: a dot separates schema and name, and case and spaces count. A
-- name that fits no relation in this way is read by SQL's rules, so 'demo."My table"' is found as well.
create or replace function pgml.find_relation(relation_name text, callers_path text) returns regclass
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  schema_name constant text := split_part(relation_name, '.', 1);
  plain_name constant text := case when strpos(relation_name, '.') = 0 then quote_ident(relation_name)
                                   else format('%I.%I', schema_name, substr(relation_name, length(schema_name) + 2)) end;
  relation regclass;
begin
  perform set_config('search_path', callers_path, true);
  relation := pg_catalog.to_regclass(plain_name);  -- the caller's path decides about this name, and about no other
  if relation is null then
    begin
      relation := pg_catalog.to_regclass(relation_name);
    exception when invalid_name or syntax_error or feature_not_supported then
      relation := null;
    end;
  end if;
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  if relation is null then
    raise exception 'relation "%" does not exist', relation_name
      using errcode = 'undefined_table',
            hint = 'Give a name of your search_path, or schema.name, as in ''public.orders''.';
  end if;
  return relation;
end
$$;
comment on function pgml.find_relation(text, text) is
  'returns the relation of this name as PostgresML reads it, without quotes; else as SQL reads it with this search_path';

create or replace function pgml.last_request(project_name text) returns jsonb
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    (select j.spec from tensile.jobs as j
      where j.model_name = m.name and j.owner_oid = m.owner_oid and j.installation = m.installation
        and j.state not in ('failed', 'cancelled') and j.enqueued_at >= m.created_at  -- not of a dropped project
      order by j.job_id desc limit 1), m.last_spec)
    from tensile.models as m
   where m.name = project_name and m.dropped_at is null
     and m.owner_oid = tensile.current_role_oid() and m.installation = tensile.installation()
$$;
comment on function pgml.last_request(text) is
  'returns the specification of the caller''s newest training of a project that did not fail; null if there is none';

create or replace function pgml.known_task(project_name text, task text, last jsonb) returns text
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  wanted constant text := lower(replace(task, '-', '_'));
begin
  if wanted is null then
    return last ->> 'task';
  elsif wanted not in ('regression', 'classification') then
    perform pgml.refuse(format('the task "%s"', left(task, 100)),
      'Trainings predict a number or a label from columns of a relation.',
      'Give ''regression'' or ''classification''.');
  elsif last ->> 'task' <> wanted then
    raise exception 'project "%" has the task %, not %', project_name, last ->> 'task', wanted
      using errcode = 'invalid_parameter_value', hint = 'Give another project_name for another task.';
  end if;
  return wanted;
end
$$;
comment on function pgml.known_task(text, text, jsonb) is
  'returns the task of a training: the one given, else that of the project''s last training; null if neither is known';

-- Mapping the arguments ---------------------------------------------------------------------------------------------

create or replace function pgml.boosting_names() returns table (name text, own text)
  language sql immutable
  set search_path = pg_catalog, pg_temp
as $$
  values ('max_iter', 'iterations'), ('learning_rate', 'learning_rate'), ('max_leaf_nodes', 'leaves'),
         ('max_depth', 'max_depth'), ('min_samples_leaf', 'leaf_rows'), ('l2_regularization', 'l2'),
         ('n_iter_no_change', 'patience')
$$;
comment on function pgml.boosting_names() is
  'returns the names that hyperparams of scikit-learn''s HistGradientBoosting have in the architecture boosting';

create or replace function pgml.network(algorithm text, hyperparams jsonb) returns jsonb
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  of_network constant text[] := array['hidden', 'activation', 'dropout', 'batch_norm', 'channels', 'kernel', 'depth',
                                      'input_shape', 'layers'];
  own constant jsonb := (select coalesce(jsonb_object_agg(e.key, e.value), '{}') from jsonb_each(hyperparams) as e
                            where e.key = any (of_network));
  name constant text := lower(algorithm);
  excess text;
begin
  if name in ('mlp', 'cnn', 'auto', 'layers') then
    return jsonb_build_object('type', name) || own;
  elsif name = 'linear' then
    select e.key into excess from jsonb_each(own) as e where e.key <> 'input_shape' order by e.key limit 1;
    if excess is not null then
      raise exception 'hyperparams: "%" means nothing to the algorithm linear, which has no hidden layer', excess
        using errcode = 'invalid_parameter_value', hint = 'Leave it out, or choose algorithm => ''mlp''.';
    end if;
    return '{"type": "mlp", "hidden": []}'::jsonb || own;
  elsif name = 'hist_gradient_boosting' then
    return jsonb_build_object('type', 'boosting') || (
      select coalesce(jsonb_object_agg(n.own, hyperparams -> n.name), '{}')
        from pgml.boosting_names() as n where hyperparams ? n.name);
  end if;
  perform pgml.refuse(format('the algorithm %s', coalesce('"' || left(algorithm, 100) || '"', 'null')),
    'Trainings fit neural networks: linear (no hidden layer), mlp, cnn, layers, or auto, which chooses by the columns; '
    'and hist_gradient_boosting.',
    case when name ~ 'boost|forest|trees|lightgbm|bagging'
         then 'For a model of similar use: algorithm => ''hist_gradient_boosting''.'
         when name ~ 'knn|svm|gaussian'
         then 'For a model of similar use: algorithm => ''mlp''.'
         when name ~ 'ridge|lasso|net|angle|sgd|gradient_descent|perceptron|huber|bayes|pursuit|sen|ransac|automatic'
         then 'For a linear model: algorithm => ''linear'', with a weight_decay in hyperparams for regularization.'
         else 'Choose one of these, as in algorithm => ''mlp''.' end);
end
$$;
comment on function pgml.network(text, jsonb) is
  'returns the architecture that an algorithm stands for, with those hyperparams that belong to the network';

create or replace function pgml.own_hyperparams(hyperparams jsonb, architecture jsonb) returns jsonb
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  mapped jsonb := hyperparams - array(select jsonb_object_keys(architecture));
  replaced jsonb := '{"alpha": "weight_decay", "C": "weight_decay", "penalty": "weight_decay",
    "l1_ratio": "weight_decay", "max_iter": "epochs", "n_iter": "epochs", "eta0": "learning_rate",
    "eta": "learning_rate", "learning_rate_init": "learning_rate", "hidden_layer_sizes": "hidden",
    "solver": "optimizer"}';
  unfit text;
begin
  if architecture ->> 'type' = 'boosting' then
    mapped := mapped - array(select n.name from pgml.boosting_names() as n);
  end if;
  if mapped ->> 'optimizer' = 'rmsprop' then
    replaced := replaced - 'alpha';  -- rmsprop has an alpha too
  end if;
  if mapped -> 'fit_intercept' = 'true' then
    mapped := mapped - 'fit_intercept';  -- a linear layer has an intercept
  end if;
  if mapped ? 'random_state' and not mapped ? 'seed' then
    mapped := (mapped - 'random_state') || jsonb_build_object('seed', mapped -> 'random_state');
  end if;
  if mapped ?| array['n_jobs', 'verbose', 'copy_X'] then
    raise notice 'hyperparams n_jobs, verbose and copy_X have no effect: a controller chooses the processors of a job';
    mapped := mapped - array['n_jobs', 'verbose', 'copy_X'];
  end if;
  select k.name into unfit from jsonb_object_keys(mapped) as k (name)
   where replaced ? k.name or k.name = 'fit_intercept' order by k.name limit 1;
  if unfit is not null then
    perform pgml.refuse(format('the hyperparameter "%s"', unfit),
      'Networks are trained by gradient descent, so this name would have another meaning here.',
      case when replaced ? unfit
           then format('The hyperparameter that comes closest is "%s". The manual lists the options of a training.',
                       replaced ->> unfit)
           else 'Leave it out.' end);
  end if;
  return mapped;
end
$$;
comment on function pgml.own_hyperparams(jsonb, jsonb) is
  'returns the hyperparams of a training without those of its network, with names of scikit-learn replaced where the '
  'meaning is the same; refuses names with another meaning';

create or replace function pgml.own_split(test_size real, test_sampling text, target text) returns jsonb
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  way constant text := lower(test_sampling);
  share constant numeric := test_size::text::numeric;
begin
  if test_size > 0 and test_size < 1 then
    if way = 'stratified' and target is null then
      raise exception 'y_column_name is null, and test_sampling is "stratified"'
        using errcode = 'invalid_parameter_value',
              hint = 'Name the column whose values have the same shares in each part.';
    elsif way in ('random', 'last', 'stratified') then
      return jsonb_build_object(case way when 'last' then 'last' else 'test_size' end, share,
                                'valid_size', round((1 - share) * 0.15, 4))
             || case way when 'stratified' then jsonb_build_object('stratify', target) else '{}' end;
    end if;
    perform pgml.refuse(format('the test_sampling %s', coalesce('"' || left(test_sampling, 100) || '"', 'null')), null,
      'Give ''random'', ''stratified'' for equal shares of the target''s values in each part, or ''last'' for the rows '
      'with the latest date or timestamp.');
  end if;
  raise exception 'test_size is %', coalesce(test_size::text, 'null')
    using errcode = 'invalid_parameter_value', detail = 'A number of rows is not supported.',
          hint = 'Give the share of the rows to hold out, above 0 and below 1, as in test_size => 0.25.';
end
$$;
comment on function pgml.own_split(real, text, text) is
  'returns the split of a training: the share test_size at random, from the end, or with equal shares of the target''s '
  'values, and 15 % of the other rows for validation';

create or replace function pgml.own_preprocess(preprocess jsonb) returns jsonb
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  own jsonb := '{}';
  step record;
begin
  for step in
    select c.key as column_name, s.key as name, s.value #>> '{}' as method, s.value -> 'ordinal' as texts
      from jsonb_each(preprocess) as c,
           lateral jsonb_each(case jsonb_typeof(c.value) when 'object' then c.value
                                   else jsonb_build_object('', c.value) end) as s
     order by 1, 2
  loop
    own := own || case
      when step.name = 'impute' and step.method in ('mean', 'median', 'zero', 'error')
        then pgml.column_option(own, 'missing', step.column_name, to_jsonb(step.method))
      when step.name = 'impute' and step.method = 'mode'
        then pgml.column_option(own, 'missing', step.column_name, '"most_frequent"')
      when step.name = 'scale' and step.method in ('standard', 'preserve')
        then pgml.column_option(own, 'standardize', step.column_name, to_jsonb(step.method = 'standard'))
      when step.name = 'encode' and step.method = 'one_hot'
        then pgml.column_option(own, 'categories', step.column_name, '10000')  -- the most: one for each value
      when step.name = 'encode' and step.method = 'target'
        then pgml.column_option(own, 'encode', step.column_name, '"target"')
      when step.name = 'encode' and jsonb_typeof(step.texts) = 'array'
        then pgml.column_option(own, 'encode', step.column_name, step.texts)
      when step.name = 'encode' and step.method = 'native' then '{}' end;
    if own is null then
      perform pgml.refuse(
        format('preprocess: %s of column "%s"', case step.name when '' then 'a value that is not an object'
               else format('"%s": "%s"', step.name, left(step.method, 100)) end, step.column_name),
        'Supported are impute (mean, median, mode, zero, error), scale (standard, preserve) and encode (one_hot, '
        'native, target, {"ordinal": [...]}).',
        'Choose one of these; or compute the column in a view, and train on the view.');
    end if;
  end loop;
  return own;
end
$$;
comment on function pgml.own_preprocess(jsonb) is
  'returns the preprocess of tensile_train for that of PostgresML, column by column';

create or replace function pgml.column_option(own jsonb, option text, column_name text, value jsonb) returns jsonb
  language sql immutable
  set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object(option, coalesce(own -> option, '{}') || jsonb_build_object(column_name, value))
$$;
comment on function pgml.column_option(jsonb, text, text, jsonb) is
  'returns an option of preprocess with a value for one more column';

create or replace function pgml.check_unused(request jsonb) returns void
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  wrong_kind text;
begin
  select k.name into wrong_kind
    from unnest(array['hyperparams', 'search_params', 'search_args', 'preprocess']) with ordinality as k (name, place)
   where jsonb_typeof(request -> k.name) not in ('object', 'null') order by k.place limit 1;
  if wrong_kind is not null then
    raise exception '% is not a JSON object', wrong_kind
      using errcode = 'invalid_parameter_value', hint = format('Give an object, as in %s => ''{}''.', wrong_kind);
  elsif lower(request ->> 'runtime') not in ('python', 'rust') then
    raise exception 'runtime is "%"', left(request ->> 'runtime', 100)
      using errcode = 'invalid_parameter_value', hint = 'Leave it out: it has no effect.';
  elsif request ->> 'runtime' is not null then
    raise notice 'runtime has no effect: trainings run in processes of the controller';
  end if;
end
$$;
comment on function pgml.check_unused(jsonb) is
  'raises an error for arguments of pgml.train that are of the wrong kind, or have no counterpart';

create or replace function pgml.own_search(request jsonb) returns jsonb
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  way constant text := lower(request ->> 'search');
  params constant jsonb := coalesce(nullif(request -> 'search_params', 'null'), '{}');
  args constant jsonb := coalesce(nullif(request -> 'search_args', 'null'), '{}');
  unfit text;
begin
  if way is null then
    if params <> '{}' or args <> '{}' then
      raise exception 'search_params and search_args mean nothing without search'
        using errcode = 'invalid_parameter_value', hint = 'Give search => ''grid'' or search => ''random''.';
    end if;
    return null;
  elsif way not in ('grid', 'random') then
    perform pgml.refuse(format('search "%s"', left(way, 100)), null, 'Choose ''grid'' or ''random''.');
  end if;
  select p.key into unfit from jsonb_each(params) as p
   where jsonb_typeof(p.value) <> 'array' or p.value = '[]' order by p.key limit 1;
  if unfit is not null or params = '{}' then
    raise exception 'search_params %', coalesce(format('has no list of values for "%s"', unfit), 'is empty')
      using errcode = 'invalid_parameter_value',
            hint = 'Give lists of values, as in search_params => ''{"learning_rate": [0.001, 0.01]}''.';
  end if;
  select a.key into unfit from jsonb_each(args) as a
   where not (a.key = 'n_iter' and way = 'random' and a.value::text ~ '^[1-9][0-9]{0,2}$'
              or a.key = 'random_state' and a.value::text ~ '^[0-9]{1,9}$') order by a.key limit 1;
  if unfit is not null then
    perform pgml.refuse(format('search_args: "%s": %s', unfit, left((args -> unfit)::text, 100)), null,
      'Supported are n_iter, from 1 to 999, for a random search, and random_state.');
  end if;
  return jsonb_build_object('sampler', way, 'trials', case way when 'random' then coalesce(args -> 'n_iter', '10') end,
                            'search_seed', coalesce(args -> 'random_state', '0'))
         || jsonb_build_object('params', (select jsonb_object_agg(p.key, jsonb_build_object('choices', p.value))
                                            from jsonb_each(params) as p));
end
$$;
comment on function pgml.own_search(jsonb) is
  'returns the options of tensile_search for those of pgml.train, with the hyperparams that vary under params; null '
  'without a search';

-- Enqueuing -----------------------------------------------------------------------------------------------------------

create or replace function pgml.enqueue(request jsonb, callers_path text) returns jsonb
  language plpgsql volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
declare
  project constant text := request ->> 'project_name';
  hyperparams jsonb := coalesce(nullif(request -> 'hyperparams', 'null'), '{}');
  repeated constant boolean := request ->> 'relation_name' is null;
  searched jsonb;
  training jsonb;
  last jsonb;
  task text;
  architecture jsonb;
  relation regclass;
  job bigint;
begin
  perform public.tensile_require_role('tensile_user');
  perform pgml.check_unused(request);
  searched := pgml.own_search(request);
  hyperparams := hyperparams || coalesce(searched -> 'params', '{}');
  last := pgml.last_request(project);
  task := pgml.known_task(project, request ->> 'task', last);
  architecture := pgml.network(request ->> 'algorithm', hyperparams);
  if not repeated then
    relation := pgml.find_relation(request ->> 'relation_name', callers_path);
  elsif coalesce((last #>> '{relation,oid}')::bigint, 0) = 0 then
    raise exception 'project "%" has no training whose relation could be used again', project
      using errcode = 'object_not_in_prerequisite_state',
            hint = 'Give relation_name and y_column_name the first time.';
  else
    relation := (last #>> '{relation,oid}')::oid;
  end if;
  training := tensile.training_request(
    model => project, relation => relation, task => task, architecture => architecture::text,
    target => coalesce(request ->> 'y_column_name', case when repeated then last ->> 'target' end),
    hyperparams => pgml.own_hyperparams(hyperparams, architecture),
    preprocess => case when repeated then last -> 'preprocess'
                       else pgml.own_preprocess(coalesce(nullif(request -> 'preprocess', 'null'), '{}')) end,
    split => case when repeated then last -> 'split'
                  else pgml.own_split((request ->> 'test_size')::real, request ->> 'test_sampling',
                                      request ->> 'y_column_name') end,
    metric => case task when 'classification' then 'f1_macro' when 'regression' then 'r2' end,
    deploy => case when (request ->> 'automatic_deploy')::boolean is false then 'never' else 'if_better' end,
    snapshot => coalesce((request ->> 'materialize_snapshot')::boolean, false)
  ) || jsonb_build_object('search_path', callers_path);
  job := case when searched is null then tensile.train(training)
              else tensile.search(tensile.search_request(
                     training, (searched ->> 'trials')::integer, 4, searched ->> 'sampler', 'none',
                     (searched ->> 'search_seed')::bigint, null)) end;
  return jsonb_build_object(
    'project', project, 'algorithm', lower(request ->> 'algorithm'), 'deployed', false, 'status', 'queued', 'job', job,
    'task', (select j.spec ->> 'task' from tensile.jobs as j where j.job_id = job));
end
$$;
comment on function pgml.enqueue(jsonb, text) is
  'implements pgml.train: maps the arguments, enqueues the training, and returns the row that describes it; the second '
  'argument is the caller''s search_path, by which the relation is found and read';

-- The body is parsed now, so it does not depend on the caller's search_path, which it passes on.
create or replace function pgml.train(
  project_name text, task text default null, relation_name text default null, y_column_name text default null,
  algorithm text default 'linear', hyperparams jsonb default '{}', search text default null,
  search_params jsonb default '{}', search_args jsonb default '{}', test_size real default 0.25,
  test_sampling text default 'random', runtime text default null, automatic_deploy boolean default true,
  materialize_snapshot boolean default false, preprocess jsonb default '{}'
) returns table (project text, task text, algorithm text, deployed boolean, status text, job bigint)
  language sql volatile parallel unsafe rows 1
begin atomic
  select r.project, r.task, r.algorithm, r.deployed, r.status, r.job
    from pg_catalog.jsonb_to_record(pgml.enqueue(pg_catalog.jsonb_build_object(
           'project_name', project_name, 'task', task, 'relation_name', relation_name, 'y_column_name', y_column_name,
           'algorithm', algorithm, 'hyperparams', hyperparams, 'search', search, 'search_params', search_params,
           'search_args', search_args, 'test_size', test_size, 'test_sampling', test_sampling, 'runtime', runtime,
           'automatic_deploy', automatic_deploy, 'materialize_snapshot', materialize_snapshot,
           'preprocess', preprocess), pg_catalog.current_setting('search_path')))
      as r (project text, task text, algorithm text, deployed boolean, status text, job bigint);
end;
comment on function pgml.train is
  'enqueues a training of a project, as tensile_train does, and returns at once: status is queued, and job is the number '
  'for tensile_wait. A later training may leave out task, relation and target';

create or replace procedure pgml.train_and_wait(
  project_name text, task text default null, relation_name text default null, y_column_name text default null,
  algorithm text default 'linear', hyperparams jsonb default '{}', search text default null,
  search_params jsonb default '{}', search_args jsonb default '{}', test_size real default 0.25,
  test_sampling text default 'random', runtime text default null, automatic_deploy boolean default true,
  materialize_snapshot boolean default false, preprocess jsonb default '{}', inout job bigint default null
)
  language plpgsql
as $$
begin  -- no SET clause, with which a procedure may not commit. So all names are qualified, and no operator is used.
  job := (select t.job from pgml.train(
    project_name, task, relation_name, y_column_name, algorithm, hyperparams, search, search_params, search_args,
    test_size, test_sampling, runtime, automatic_deploy, materialize_snapshot, preprocess) as t);
  call tensile.follow_to_end(job, 'pgml.train'::pg_catalog.text);
end
$$;
comment on procedure pgml.train_and_wait is
  'enqueues a training of a project, commits, and returns when the job has ended; raises the error of a failed job. The '
  'job continues if the call is cancelled';

create or replace function pgml.load_dataset(
  source text, subset text default null, "limit" bigint default null, kwargs jsonb default '{}'
) returns table (table_name text, rows bigint)
  language sql volatile parallel unsafe rows 1
begin atomic
  select pg_catalog.format('%I.%I', pg_catalog.current_schema(), source) as table_name, l.rows
    from (select case when subset is null and "limit" is null and kwargs in ('{}', 'null')
                      then public.tensile_load_dataset(source)
                      else pgml.refuse('a part of a data set',
                             'subset, limit and kwargs choose rows of a data set.',
                             'Leave them out, then: create table part as select * from the_table limit 100;')::bigint
                 end as rows) as l;
end;
comment on function pgml.load_dataset(text, text, bigint, jsonb) is
  'creates a table with a sample data set in the current schema, and returns its name and the number of its rows';
