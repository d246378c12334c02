-- pgml.deploy, and the views.

create or replace function pgml.algorithm_of(architecture jsonb) returns text
  language sql immutable
  set search_path = pg_catalog, pg_temp
as $$
  select case when architecture ->> 'type' = 'mlp' and architecture -> 'hidden' = '[]' then 'linear'
              when architecture ->> 'type' = 'boosting' then 'hist_gradient_boosting'
              else architecture ->> 'type' end
$$;
comment on function pgml.algorithm_of(jsonb) is
  'returns the algorithm that pgml.train calls such a model: linear is an mlp without a hidden layer';

create or replace function pgml.candidate(model_id bigint, strategy text, algorithm text) returns integer
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  with example as (  -- versions are compared with those that predict the same, by the same metric
    select v.task, v.target, v.metric_name from tensile.model_versions as v
     where v.model_id = candidate.model_id order by v.deployed desc, v.number desc limit 1
  ),
  fitting as (
    select v.* from tensile.model_versions as v
     where v.model_id = candidate.model_id and lower(algorithm) is not distinct from
           case when algorithm is not null then pgml.algorithm_of(v.architecture) end
  )
  select case strategy
    when 'most_recent' then (select max(v.number) from fitting as v)
    when 'best_score' then (
      select v.number from fitting as v
        join example as e on e.task = v.task and e.target = v.target and e.metric_name = v.metric_name
       where v.metric not in ('nan', 'infinity', '-infinity')
       order by case when v.higher_is_better then -v.metric else v.metric end, v.number desc limit 1)
    when 'rollback' then (
      select d.from_version
        from tensile.deployments as d join fitting as v on v.number = d.from_version and not v.deployed
       where d.model_id = candidate.model_id order by d.deployment_id desc limit 1) end
$$;
comment on function pgml.candidate(bigint, text, text) is
  'returns the number of the version that a strategy of pgml.deploy chooses, among those of the algorithm if one is '
  'given; null if none qualifies';

create or replace function pgml.deploy_by(project_name text, strategy text, algorithm text) returns jsonb
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $$
declare
  way constant text := lower(strategy);
  model bigint;
  chosen integer;
begin
  perform public.tensile_require_role('tensile_user');
  if way is null or way not in ('best_score', 'most_recent', 'rollback') then
    raise exception 'strategy is %', coalesce('"' || left(strategy, 100) || '"', 'null')
      using errcode = 'invalid_parameter_value', hint = 'Give ''best_score'', ''most_recent'' or ''rollback''.';
  end if;
  model := tensile.lock_own_model(project_name, 'deploy a version of');
  chosen := pgml.candidate(model, way, algorithm);
  if chosen is null then
    raise exception 'no model of project "%" qualifies for the strategy %', project_name,
                    way || coalesce(' with the algorithm ' || left(algorithm, 100), '')
      using errcode = 'object_not_in_prerequisite_state',
            hint = 'See its models: select * from pgml.trained_models;';
  end if;
  return pgml.deploy_version(project_name, chosen, way);
end
$$;
comment on function pgml.deploy_by(text, text, text) is 'implements pgml.deploy with a strategy';

create or replace function pgml.deploy_version(project_name text, version integer, strategy text) returns jsonb
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform public.tensile_deploy(project_name, version, 'pgml.deploy: ' || strategy);
  return jsonb_build_object('project', project_name, 'strategy', strategy, 'algorithm', (
    select pgml.algorithm_of(v.architecture)
      from tensile.model_versions as v join tensile.models as m on m.model_id = v.model_id
     where m.name = project_name and m.dropped_at is null and v.number = version));
end
$$;
comment on function pgml.deploy_version(text, integer, text) is
  'deploys a version, and returns the row of pgml.deploy; the strategy is written into the history of deployments';

create or replace function pgml.deploy(
  project_name text, strategy text default 'best_score', algorithm text default null
) returns table (project text, strategy text, algorithm text)
  language sql volatile parallel unsafe rows 1
begin atomic
  select r.project, r.strategy, r.algorithm
    from pg_catalog.jsonb_to_record(pgml.deploy_by(project_name, strategy, algorithm))
      as r (project text, strategy text, algorithm text);
end;
comment on function pgml.deploy(text, text, text) is
  'deploys a model of a project: best_score, most_recent or rollback (the model that predicted before), of one algorithm '
  'if that is given';

create or replace function pgml.deploy(model_id bigint)
  returns table (project text, strategy text, algorithm text)
  language sql volatile parallel unsafe rows 1
begin atomic
  select r.project, r.strategy, r.algorithm
    from pgml.version_of(model_id) as v,
         lateral pg_catalog.jsonb_to_record(pgml.deploy_version(v.project, v.number, 'specific'))
           as r (project text, strategy text, algorithm text);
end;
comment on function pgml.deploy(bigint) is 'deploys the model of this id';

-- Views ----------------------------------------------------------------------------------------------------------------

create or replace view pgml.projects with (security_invoker) as
select m.model_id as id, m.name,
       coalesce((select v.task::text from tensile.model_versions as v
                  where v.model_id = m.model_id order by v.deployed desc, v.number desc limit 1),
                m.last_spec ->> 'task') as task,
       m.created_at,
       coalesce((select max(v.created_at) from tensile.model_versions as v where v.model_id = m.model_id),
                m.created_at) as updated_at
  from tensile.models as m
 where m.dropped_at is null
   and (m.definition is not null or m.last_spec is not null
        or exists (select from tensile.model_versions as v where v.model_id = m.model_id));
comment on view pgml.projects is 'models of indb-tensile that the current role owns or may predict with';

create or replace view pgml.models with (security_invoker) as
select v.version_id as id, v.model_id as project_id, null::bigint as snapshot_id,
       jsonb_array_length(v.training -> 'features') as num_features, pgml.algorithm_of(v.architecture) as algorithm,
       'python' as runtime, coalesce(v.training -> 'hyperparams', '{}') as hyperparams, 'successful' as status,
       case when v.metrics ? 'f1_macro' then v.metrics || jsonb_build_object('f1', v.metrics -> 'f1_macro')
            else v.metrics end as metrics,
       null::text as search, '{}'::jsonb as search_params, '{}'::jsonb as search_args,
       v.created_at, v.created_at as updated_at, v.number as version, v.job_id as job
  from tensile.model_versions as v
  join tensile.models as m on m.model_id = v.model_id
 where m.dropped_at is null;
comment on view pgml.models is
  'versions of models: each successful training adds one. metrics has f1 beside f1_macro, which has the same value';

create or replace view pgml.deployments with (security_invoker) as
select d.deployment_id as id, d.model_id as project_id, v.version_id as model_id,
       case when d.job_id is not null then 'new_score'
            when d.reason like 'pgml.deploy: %' then substr(d.reason, 14)
            else 'specific' end as strategy,
       d.deployed_at as created_at
  from tensile.deployments as d
  join tensile.models as m on m.model_id = d.model_id and m.dropped_at is null
  join tensile.model_versions as v on v.model_id = d.model_id and v.number = d.to_version;
comment on view pgml.deployments is
  'history of deployments: new_score by trainings, the strategies of pgml.deploy, and specific for others; only owners '
  'and tensile_monitor see them';

create or replace view pgml.trained_models with (security_invoker) as
select v.version_id as id, m.name, v.task::text as task, pgml.algorithm_of(v.architecture) as algorithm,
       'python' as runtime, v.created_at,
       case when v.training #>> '{split,last}' is not null then 'last'
            when v.training #>> '{split,stratify}' is not null then 'stratified'
            when v.training #>> '{split,column}' is not null then 'column' else 'random' end as test_sampling,
       coalesce(v.training #>> '{split,last}', v.training #>> '{split,test_size}')::real as test_size,
       v.deployed
  from tensile.model_versions as v
  join tensile.models as m on m.model_id = v.model_id
 where m.dropped_at is null
 order by v.created_at desc, v.version_id desc;
comment on view pgml.trained_models is
  'versions of models, the newest first, and whether they are deployed; test_sampling is column for a split that a '
  'column of the relation defines';

create or replace view pgml.deployed_models with (security_invoker) as
select v.version_id as id, m.name, v.task::text as task, pgml.algorithm_of(v.architecture) as algorithm,
       'python' as runtime,
       (select max(d.deployed_at) from tensile.deployments as d
         where d.model_id = v.model_id and d.to_version = v.number) as deployed_at
  from tensile.model_versions as v
  join tensile.models as m on m.model_id = v.model_id
 where m.dropped_at is null and v.deployed
 order by m.name;
comment on view pgml.deployed_models is
  'deployed versions, by project; deployed_at is null for models of other owners and of release 0.1';

create or replace view pgml.overview with (security_invoker) as
select t.name, d.created_at as deployed_at, t.task, t.algorithm, t.runtime,
       case when v.relation_name is not null
            then tensile.relation_title(v.relation_oid, v.relation_schema, v.relation_name) end as relation_name,
       array[v.target] as y_column_name, t.test_sampling, t.test_size
  from pgml.deployments as d
  join pgml.trained_models as t on t.id = d.model_id
  join tensile.model_versions as v on v.version_id = t.id
 order by d.created_at desc, d.id desc;
comment on view pgml.overview is 'deployments with what was trained on what, the newest first';

-- The same column has the same meaning in several views.
do $$
declare
  col record;
  meaning text;
  meanings constant jsonb := jsonb_build_object(
    'projects.id', 'number of the project', 'models.id', 'number of the model, for pgml.predict and pgml.deploy',
    'deployments.id', 'number of the deployment', 'id', 'number of the model, for pgml.predict and pgml.deploy',
    'name', 'name of the project', 'task', 'classification or regression',
    'projects.created_at', 'time when the name was reserved', 'deployments.created_at', 'time of the deployment',
    'created_at', 'time when the training published the model',
    'projects.updated_at', 'time when the newest model was published', 'updated_at', 'the same as created_at',
    'project_id', 'project of the model', 'model_id', 'model that was deployed',
    'snapshot_id', 'always null: snapshots are not kept', 'num_features', 'number of columns that the model reads',
    'algorithm', 'linear, or the type of the network', 'runtime', 'always python',
    'hyperparams', 'hyperparameters of the training', 'status', 'always successful: failed trainings add no model',
    'metrics', 'metrics on the rows held out, by name', 'search', 'always null', 'search_params', 'always empty',
    'search_args', 'always empty', 'version', 'number of the version within the project, for tensile_predict',
    'job', 'job that trained the model', 'strategy', 'how the model was chosen', 'deployed_at', 'time of the deployment',
    'deployed', 'whether the model predicts when only its project is named',
    'relation_name', 'relation of the training', 'y_column_name', 'column that the model predicts, as an array',
    'test_sampling', 'how rows were held out: random, stratified, last or column', 'test_size', 'share of the rows held out');
begin
  for col in
    select c.relname as view_name, a.attname as name
      from pg_class as c join pg_attribute as a on a.attrelid = c.oid
     where c.relnamespace = 'pgml'::regnamespace and c.relkind = 'v' and a.attnum > 0 and not a.attisdropped
  loop
    meaning := coalesce(meanings ->> (col.view_name || '.' || col.name), meanings ->> col.name);
    if meaning is not null then
      execute format('comment on column pgml.%I.%I is %L', col.view_name, col.name, meaning);
    end if;
  end loop;
end
$$;
