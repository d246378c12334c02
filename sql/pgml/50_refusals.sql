-- Functions of PostgresML without a counterpart: each raises an error that says what to do instead. Those of PostgresML
-- that return columns named like arguments return jsonb here, because PL/pgSQL accepts no such columns.

do $$
declare
  texts constant text := 'Models are trained here on columns of your tables; no pretrained language model is loaded.';
  compute_outside constant text := 'Compute it outside of the database and store the result in a column of type real[]: '
    'tensile_train learns from such a column.';
  refused record;
begin
  for refused in
    select r.signature, r.returned, r.detail, r.hint
      from (values
        ('embed(transformer text, text text, kwargs jsonb default ''{}'')', 'real[]', texts, compute_outside),
        ('embed(transformer text, inputs text[], kwargs jsonb default ''{}'')', 'setof real[]', texts, compute_outside),
        ('rank(transformer text, query text, documents text[], kwargs jsonb default ''{}'')',
         'table (corpus_id bigint, score double precision, text text)', texts,
         'Train a regression on pairs whose relevance is known: tensile_train(..., task => ''regression'').'),
        ('transform(task text, args jsonb default ''{}'', inputs text[] default ''{}'', cache boolean default false)',
         'jsonb', texts, 'To classify texts by your own labels: tensile_train on their embeddings, a column real[].'),
        ('transform(task jsonb, args jsonb default ''{}'', inputs text[] default ''{}'', cache boolean default false)',
         'jsonb', texts, 'To classify texts by your own labels: tensile_train on their embeddings, a column real[].'),
        ('generate(project_name text, inputs text, config jsonb default ''{}'')', 'text', texts,
         'Call a program that serves language models from your application.'),
        ('generate(project_name text, inputs text[], config jsonb default ''{}'')', 'text[]', texts,
         'Call a program that serves language models from your application.'),
        ('chunk(splitter text, text text, kwargs jsonb default ''{}'')', 'table (chunk_index bigint, chunk text)',
         'Texts are not split here.',
         'Split them in SQL: select chunk from regexp_split_to_table(document, E''\n\n+'') as chunk;'),
        ('tune(project_name text, task text default null, relation_name text default null, '
         'y_column_name text default null, model_name text default null, hyperparams jsonb default ''{}'', '
         'test_size real default 0.25, test_sampling text default ''random'', automatic_deploy boolean default true, '
         'materialize_snapshot boolean default false)',
         'setof jsonb', texts,
         'To go on from a model that was trained here: tensile_train(..., init_from => ''its name'').'),
        ('predict_joint(project_name text, features real[])', 'real[]', 'A project has one target.',
         'Train a model of several targets with tensile_train, and call tensile_predict_values.'),
        ('train_joint(project_name text, task text default null, relation_name text default null, '
         'y_column_name text[] default null, algorithm text default ''linear'', hyperparams jsonb default ''{}'')',
         'setof jsonb', 'A project has one target.',
         'Train a model of several: tensile_train(..., target => ''["a", "b"]'').'),
        ('decompose(project_name text, vector real[])', 'real[]', 'Trainings predict a target from features.',
         'Train a network and read its outputs: tensile_predict_vector.'),
        ('snapshot(relation_name text, y_column_name text, test_size real default 0.25, '
         'test_sampling text default ''random'', preprocess jsonb default ''{}'')',
         'setof jsonb', 'A snapshot belongs to the training that reads it.',
         'Give materialize_snapshot => true to pgml.train, or copy the rows: create table ... as select ...')
      ) as r (signature, returned, detail, hint)
  loop
    execute format(
      'create or replace function pgml.%s returns %s language plpgsql stable set search_path = pg_catalog, pg_temp as %L',
      refused.signature, refused.returned,
      format('begin perform pgml.refuse(%L, %L, %L); end',
             'pgml.' || split_part(refused.signature, '(', 1), refused.detail, refused.hint));
  end loop;
  for refused in
    select p.oid::regprocedure as routine from pg_proc as p
     where p.pronamespace = 'pgml'::regnamespace and obj_description(p.oid, 'pg_proc') is null
  loop
    execute format('comment on function %s is %L', refused.routine,
                   'raises an error: this function of PostgresML has no counterpart, and the hint says what to do');
  end loop;
end
$$;
