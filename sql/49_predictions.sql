-- Predictions and evaluation: the functions for users, and what they have in common. All are security invoker, so the
-- rows come through the caller's own session. 50_functions.sql says how these functions treat search_path, and gives the
-- privileges on them.

-- Predictions --------------------------------------------------------------------------------------------------
-- Each function has one input of type anycompatible, which accepts rows, sub-selects, arrays, jsonb, literals and null.
-- The functions are stable, because a version does not change, and parallel unsafe, because a parallel worker cannot
-- run the bridge's queries.

-- The JSON of a row takes many times the row's size in this session's memory, so the row is measured before it is
-- converted. Compressed values are measured uncompressed: an array by a slice of all elements, jsonb by an empty path,
-- and a row by its binary form, or by its text if a column's type has no binary form or client_encoding lacks a
-- character.
create function tensile.row_bytes(input anyelement) returns bigint
  language plpgsql stable parallel unsafe
as $$
begin
  return octet_length(record_send(input));
exception when undefined_function or untranslatable_character or character_not_in_repertoire then
  return octet_length(input::text);  -- the input may also be another value than a row
end
$$;
comment on function tensile.row_bytes(anyelement) is 'returns the uncompressed size of a row or of another value';

create function tensile.row_fault(input anycompatible, row_number bigint) returns jsonb
  language plpgsql stable parallel unsafe
as $$
declare
  most_bytes constant bigint := 8388608;  -- the same limit as in evaluations.py
  most_elements constant bigint := 1000000;
  type_name constant text := pg_catalog.pg_typeof(input)::text;
  size_bytes bigint := pg_catalog.pg_column_size(input);
  elements bigint;
  fault text;
  way_out text;
begin
  if pg_catalog.right(type_name, 2) operator(pg_catalog.=) '[]' then
    elements := pg_catalog.cardinality(input);
    if elements operator(pg_catalog.<=) most_elements then
      size_bytes := pg_catalog.pg_column_size(input[:]);
    end if;
  elsif type_name operator(pg_catalog.=) 'jsonb' then
    size_bytes := pg_catalog.pg_column_size(input operator(pg_catalog.#>) '{}');
  elsif type_name operator(pg_catalog.=) any (array['text', 'json', 'character varying']) then
    size_bytes := pg_catalog.octet_length(input::text);
  else
    size_bytes := tensile.row_bytes(input);
  end if;
  if elements operator(pg_catalog.>) most_elements then
    fault := pg_catalog.format('row %s has %s values, more than the %s that a row may have',
                               row_number, elements, most_elements);
    way_out := 'Predict for an array of fewer values.';
  elsif size_bytes operator(pg_catalog.>) most_bytes then
    fault := pg_catalog.format('row %s has %s bytes, more than the %s that a row may have',
                               row_number, size_bytes, most_bytes);
    way_out := 'Give the model''s columns only, or arrays of fewer values.';
  end if;
  return case when fault is not null
              then pg_catalog.jsonb_build_object('ok', false, 'error', pg_catalog.jsonb_build_object(
                     'sqlstate', '54000', 'message', fault, 'detail', '', 'hint', way_out)) end;
end
$$;
comment on function tensile.row_fault(anycompatible, bigint) is
  'returns null, or the answer that a row is refused with which has more than 8 MB, or an array with more than a million '
  'values. Called for rows above 32 kB';

create function tensile.check_row_size(input anycompatible, row_number bigint) returns boolean
  language plpgsql stable parallel unsafe
as $$
declare
  answer constant jsonb := tensile.row_fault(input, row_number);
begin
  @RAISE_ANSWER@
  return true;
end
$$;
comment on function tensile.check_row_size(anycompatible, bigint) is
  'returns true, or raises the error of tensile.row_fault()';

create function tensile.row_form(input regtype) returns text
  language plpgsql immutable parallel safe
as $$
begin
  return case input when 'record'::regtype then 'record'
                    when 'text'::regtype then 'literal' when 'varchar'::regtype then 'literal'
                    else 'value' end;
end
$$;
comment on function tensile.row_form(regtype) is
  'tells how the bridge reads a row of this type: "record" has no column names, "literal" is JSON or an array as text';

-- The lock_timeout bounds a prediction's wait for locks of other sessions on the catalog. 82_text_settings.sql pins the
-- settings that decide how values become text.
create function tensile.prediction(
  model text, input anycompatible, version integer, kind text
) returns jsonb
  language plpgsql stable parallel unsafe
  set lock_timeout = '2s'
as $$
declare
  fault jsonb;
begin
  -- PostgreSQL compresses at most 255 times, so a value of 8 MB has at least 32 kB when it is compressed.
  if pg_column_size(input) >= 32768 then
    fault := tensile.row_fault(input, 1);
    if fault is not null then
      return fault;
    end if;
  end if;
  return tensile.answer('predict', jsonb_build_object(
    'model', model, 'version', version, 'kind', kind, 'form', tensile.row_form(pg_typeof(input))),
    array[to_jsonb(input)]);
end
$$;
comment on function tensile.prediction(text, anycompatible, integer, text) is
  'returns the bridge''s answer with one prediction, of kind value, label, labels, proba, vector, values or embedding '
  '(that of one side of pairs is side/embedding), or with an error, which the caller raises';

create function public.tensile_predict(model text, input anycompatible, version integer default null)
  returns double precision
  language plpgsql stable parallel unsafe
as $$
declare
  answer jsonb;
begin
  @REQUIRE_USER@
  answer := tensile.prediction(model, input, version, 'value');
  @RAISE_ANSWER@
  return (answer #>> '{result,values,0}')::double precision;
end
$$;
comment on function public.tensile_predict(text, anycompatible, integer) is
  'predicts for a row: returns the value, or the label if labels are numbers or booleans (true is 1)';

create function public.tensile_predict_label(model text, input anycompatible, version integer default null)
  returns text
  language plpgsql stable parallel unsafe
as $$
declare
  answer jsonb;
begin
  @REQUIRE_USER@
  answer := tensile.prediction(model, input, version, 'label');
  @RAISE_ANSWER@
  return answer #>> '{result,values,0}';
end
$$;
comment on function public.tensile_predict_label(text, anycompatible, integer) is
  'predicts for a row: returns the label as text, for a multi-label model the text of an array of labels';

create function public.tensile_predict_labels(model text, input anycompatible, version integer default null)
  returns text[]
  language plpgsql stable parallel unsafe
as $$
declare
  answer jsonb;
begin
  @REQUIRE_USER@
  answer := tensile.prediction(model, input, version, 'labels');
  @RAISE_ANSWER@
  return tensile.texts_of(nullif(answer #> '{result,values,0}', 'null'));
end
$$;
comment on function public.tensile_predict_labels(text, anycompatible, integer) is
  'predicts for a row: returns the labels whose probability is 0.5 or more; for a model of classes the only label';

create function public.tensile_predict_proba(model text, input anycompatible, version integer default null)
  returns table (label text, probability double precision)
  language plpgsql stable parallel unsafe rows 10
as $$
declare
  answer jsonb;
begin
  @REQUIRE_USER@
  answer := tensile.prediction(model, input, version, 'proba');
  @RAISE_ANSWER@
  return query
  select entry.key, entry.value::double precision
    from jsonb_each_text(nullif(answer #> '{result,values,0}', 'null')) as entry
   order by entry.value::double precision desc, entry.key;
end
$$;
comment on function public.tensile_predict_proba(text, anycompatible, integer) is
  'predicts for a row: returns each label with its probability, the most probable label first';

create function public.tensile_predict_vector(model text, input anycompatible, version integer default null)
  returns double precision[]
  language plpgsql stable parallel unsafe
as $$
declare
  answer jsonb;
begin
  @REQUIRE_USER@
  answer := tensile.prediction(model, input, version, 'vector');
  @RAISE_ANSWER@
  return tensile.texts_of(nullif(answer #> '{result,values,0}', 'null'))::double precision[];
end
$$;
comment on function public.tensile_predict_vector(text, anycompatible, integer) is
  'predicts for a row: returns the outputs of the model''s network';

create function public.tensile_predict_values(model text, input anycompatible, version integer default null)
  returns double precision[]
  language plpgsql stable parallel unsafe
as $$
declare
  answer jsonb;
begin
  @REQUIRE_USER@
  answer := tensile.prediction(model, input, version, 'values');
  @RAISE_ANSWER@
  return tensile.texts_of(nullif(answer #> '{result,values,0}', 'null'))::double precision[];
end
$$;
comment on function public.tensile_predict_values(text, anycompatible, integer) is
  'predicts for a row: returns the values of a regression, one for each target column or element of a target that is '
  'an array';

create function public.tensile_embed(
  model text, input anycompatible, version integer default null, side text default null
) returns real[]
  language plpgsql stable parallel unsafe
as $$
declare
  answer jsonb;
begin
  @REQUIRE_USER@
  answer := tensile.prediction(model, input, version, concat_ws('/', side, 'embedding'));
  @RAISE_ANSWER@
  return tensile.texts_of(nullif(answer #> '{result,values,0}', 'null'))::real[];
end
$$;
comment on function public.tensile_embed(text, anycompatible, integer, text) is
  'returns the embedding of a row: the values of the last hidden layer of the model''s network, from which its last '
  'layer predicts. Similar rows have similar embeddings. Of a model of pairs, side query or item says which columns the '
  'row has: a query is near the items that go with it. A row whose image cannot be read has no embedding: null, if the '
  'model leaves such rows out';

create function tensile.prediction_part(
  model text, version integer, kind text, form text, first_row bigint, rows jsonb[]
) returns jsonb
  language plpgsql stable parallel unsafe
as $$
begin
  return tensile.answer('predict', jsonb_build_object(
    'model', model, 'version', version, 'kind', kind, 'form', form, 'first_row', first_row), rows);
end
$$;
comment on function tensile.prediction_part(text, integer, text, text, bigint, jsonb[]) is
  'predicts for a part of a batch, whose first row has this number; returns the bridge''s answer with the predictions and '
  'the number of the version that made them, or with an error';

create function tensile.texts_of(list jsonb) returns text[]
  language plpgsql immutable parallel safe
as $$
begin
  if list is null then
    return null;
  end if;
  return array(select entry.value
                 from jsonb_array_elements_text(list) with ordinality as entry (value, place) order by entry.place);
end
$$;
comment on function tensile.texts_of(jsonb) is 'converts a list to an array of texts; a null of JSON becomes null';

-- Predicts part by part, so that neither this session nor the service ever holds the JSON of all rows. The answer for
-- the first part names the version that predicted, and the same version predicts for the other parts.
--
-- PL/pgSQL does not accept an array of anonymous records as an argument, but it accepts a record with such an array in
-- its field f1. `example` is a null of the elements' type. PL/pgSQL keeps the plans of its statements for each
-- combination of argument types; without `example` it would use the same plans for arrays of all types.
create function tensile.predictions(
  model text, list record, example anycompatible, version integer, rows_before bigint, kind text
) returns text[]
  language plpgsql stable parallel unsafe
  set lock_timeout = '2s'
as $$
declare
  part_bytes constant integer := 524288;
  part_rows constant integer := 4096;
  dimensions constant integer := array_ndims(list.f1);
  form constant text := tensile.row_form(pg_typeof(example));
  answers text[] := '{}';
  answer jsonb;
  rows jsonb[] := '{}';
  row_json jsonb;
  row_bytes integer;
  held_bytes bigint := 0;
  row_number bigint := rows_before;
  slice_rows integer;
begin
  if dimensions > 1 then  -- each row is an array
    slice_rows := greatest(1, least(part_rows,
      part_bytes / greatest(1, 8 * (cardinality(list.f1) / array_length(list.f1, 1)))));
    for at_row in array_lower(list.f1, 1) .. array_upper(list.f1, 1) by slice_rows loop
      if slice_rows = 1 and pg_column_size(list.f1[at_row:at_row]) >= 32768 then
        perform tensile.check_row_size(list.f1[at_row:at_row], row_number + 1);
      end if;
      answer := tensile.prediction_part(model, version, kind, form, row_number + 1, array(
        select entry.value
          from jsonb_array_elements(
                 to_jsonb(list.f1[at_row:least(at_row + slice_rows - 1, array_upper(list.f1, 1))]))
               with ordinality as entry (value, place) order by entry.place));
      @RAISE_ANSWER@
      version := (answer #>> '{result,version}')::integer;
      row_number := row_number + jsonb_array_length(answer #> '{result,values}');
      answers := answers || tensile.texts_of(answer #> '{result,values}');
    end loop;
    return answers;
  end if;
  for row_json, row_bytes in
    select case when s.size_bytes < 32768 or tensile.check_row_size(s.input, rows_before + s.place)
                then to_jsonb(s.input) end, coalesce(s.size_bytes, 0)
      from (select u.input, pg_column_size(u.input) as size_bytes, u.place
              from (select unnest(list.f1) as input, generate_series(1, cardinality(list.f1)) as place) as u) as s
  loop
    row_number := row_number + 1;
    if cardinality(rows) > 0 and (held_bytes + row_bytes > part_bytes or cardinality(rows) = part_rows) then
      answer := tensile.prediction_part(model, version, kind, form, row_number - cardinality(rows), rows);
      @RAISE_ANSWER@
      version := (answer #>> '{result,version}')::integer;
      answers := answers || tensile.texts_of(answer #> '{result,values}');
      rows := '{}';
      held_bytes := 0;
    end if;
    rows := rows || row_json;
    held_bytes := held_bytes + row_bytes;
  end loop;
  answer := tensile.prediction_part(model, version, kind, form, row_number + 1 - cardinality(rows), rows);
  @RAISE_ANSWER@
  if list.f1 is not null then
    return answers || tensile.texts_of(answer #> '{result,values}');
  end if;
  return null;
end
$$;
comment on function tensile.predictions(text, record, anycompatible, integer, bigint, text) is
  'predicts for the rows of the array in the record''s field f1, as texts; `example` is a null of the elements'' type, '
  '`kind` the kind of answer: value, label, proba or values';

-- A long array is passed on in slices, because the record that holds an array is a copy of the array.
create function tensile.batch(model text, inputs anycompatiblearray, version integer, kind text) returns text[]
  language sql stable parallel unsafe
as $$
  select case
    when coalesce(array_length(inputs, 1), 0) <= 4096
    then tensile.predictions(model, row(inputs), inputs[null::integer], version, 0, kind)
    else array(
      with used as materialized (
        -- If there is no version, the number is null, and tensile.predictions raises the error.
        select tensile.prediction_part(model, version, kind, 'value', 1, '{}') #>> '{result,version}' as number,
               array_lower(inputs, 1) as first, array_upper(inputs, 1) as last,
               greatest(4096, array_length(inputs, 1) / 16) as step)
      select entry.value
        from used,
             lateral generate_series(used.first, used.last, used.step) as at_row,
             lateral unnest(tensile.predictions(
               model, row(inputs[at_row:least(at_row + used.step - 1, used.last)]), inputs[null::integer],
               used.number::integer, at_row - used.first, kind)) with ordinality as entry (value, place)
       order by at_row, entry.place)
    end
$$;
comment on function tensile.batch(text, anycompatiblearray, integer, text) is
  'implements the functions for batches: returns one answer of this kind for each row, as text';

create function public.tensile_predict_batch(model text, inputs anycompatiblearray, version integer default null)
  returns double precision[]
  language sql stable parallel unsafe
as $$ select tensile.batch(model, inputs, version, 'value')::double precision[] $$;
comment on function public.tensile_predict_batch(text, anycompatiblearray, integer) is
  'predicts for many rows at once, in their order: tensile_predict_batch(''m'', array_agg(t)) from t. Returns an empty '
  'array for an empty array, and null for null';

create function public.tensile_predict_batch_label(
  model text, inputs anycompatiblearray, version integer default null
) returns text[]
  language sql stable parallel unsafe
as $$ select tensile.batch(model, inputs, version, 'label') $$;
comment on function public.tensile_predict_batch_label(text, anycompatiblearray, integer) is
  'predicts for many rows at once, in their order: returns the labels as texts, an empty array for an empty array, and '
  'null for null';

create function public.tensile_predict_batch_proba(
  model text, inputs anycompatiblearray, version integer default null
) returns jsonb[]
  language sql stable parallel unsafe
as $$ select tensile.batch(model, inputs, version, 'proba')::jsonb[] $$;
comment on function public.tensile_predict_batch_proba(text, anycompatiblearray, integer) is
  'predicts for many rows at once, in their order: returns an object with the probability of each label, an empty array '
  'for an empty array, and null for null';

create function public.tensile_predict_batch_values(
  model text, inputs anycompatiblearray, version integer default null
) returns jsonb[]
  language sql stable parallel unsafe
as $$ select tensile.batch(model, inputs, version, 'values')::jsonb[] $$;
comment on function public.tensile_predict_batch_values(text, anycompatiblearray, integer) is
  'predicts for many rows at once, in their order: returns the list of values of each row by a regression, an empty '
  'array for an empty array, and null for null';

create function public.tensile_embed_batch(
  model text, inputs anycompatiblearray, version integer default null, side text default null
) returns jsonb[]
  language sql stable parallel unsafe
as $$ select tensile.batch(model, inputs, version, pg_catalog.concat_ws('/', side, 'embedding'))::jsonb[] $$;
comment on function public.tensile_embed_batch(text, anycompatiblearray, integer, text) is
  'returns the embeddings of many rows at once, in their order, each as a list; an empty array for an empty array, and '
  'null for null. Of a model of pairs, side query or item says which columns the rows have';

-- PostgreSQL writes this body in place of a call in FROM. So the rows stream: the functions of the select lists return
-- one page, and then one row, at a time. A function in FROM would be stored as a whole before its first row is used.
-- `offset 0` keeps PostgreSQL from calling the functions once for each column. PostgreSQL exports no snapshot in a
-- subtransaction, as which PL/Python runs each statement, so it is exported here (indb_tensile/sql_api/shared_reading.py).
create function public.tensile_predict_table(
  model text, relation regclass, keys text[] default null, version integer default null,
  with_probabilities boolean default false
) returns table (key jsonb, value double precision, label text, probabilities jsonb, targets jsonb)
  language sql stable parallel unsafe rows 100000
begin atomic
  select pg_catalog.jsonb_array_elements(
           coalesce(tensile.page_error((p.page).error), (p.page).keys)::jsonb) as key,
         pg_catalog.unnest((p.page).numbers::double precision[]) as value,
         pg_catalog.unnest((p.page).labels::text[]) as label,
         pg_catalog.jsonb_array_elements((p.page).probabilities::jsonb) as probabilities,
         pg_catalog.jsonb_array_elements((p.page).targets::jsonb) as targets
    from (select tensile.prediction_pages(
                   (prepared.reading operator(pg_catalog.->>) 'reading')::bigint,
                   case when (prepared.reading operator(pg_catalog.->>) 'exports')::boolean
                        then pg_catalog.pg_export_snapshot() end) as page
            from (select tensile.call('predict_table', pg_catalog.jsonb_build_object(
                           'model', tensile_predict_table.model,
                           'relation', tensile_predict_table.relation::oid::bigint,
                           'keys', tensile_predict_table.keys, 'version', tensile_predict_table.version,
                           'with_probabilities', tensile_predict_table.with_probabilities,
                           'search_path', pg_catalog.current_setting('search_path'))) as reading
                  offset 0) as prepared
          offset 0) as p;
end;
comment on function public.tensile_predict_table(text, regclass, text[], integer, boolean) is
  'predicts for all rows of a relation, read with the caller''s rights: returns each row''s key (the primary key, or '
  'the columns of keys) with the value of a regression or the label, and with_probabilities also each label''s '
  'probability. A model of several targets has their values in targets: an object by column, or the list of an '
  'array''s elements. In FROM its rows stream';

create function public.tensile_embed_table(
  model text, relation regclass, keys text[] default null, version integer default null, side text default null
) returns table (key jsonb, embedding real[])
  language sql stable parallel unsafe rows 100000
begin atomic
  select e.key, tensile.texts_of(nullif(e.embedding, 'null'))::real[]
    from (select pg_catalog.jsonb_array_elements(
                   coalesce(tensile.page_error((p.page).error), (p.page).keys)::jsonb) as key,
                 pg_catalog.jsonb_array_elements((p.page).targets::jsonb) as embedding
            from (select tensile.prediction_pages(
                           (prepared.reading operator(pg_catalog.->>) 'reading')::bigint,
                           case when (prepared.reading operator(pg_catalog.->>) 'exports')::boolean
                                then pg_catalog.pg_export_snapshot() end) as page
                    from (select tensile.call('predict_table', pg_catalog.jsonb_build_object(
                                   'model', tensile_embed_table.model,
                                   'relation', tensile_embed_table.relation::oid::bigint,
                                   'keys', tensile_embed_table.keys, 'version', tensile_embed_table.version,
                                   'embedding', true, 'side', tensile_embed_table.side,
                                   'search_path', pg_catalog.current_setting('search_path')))
                                 as reading
                          offset 0) as prepared
                 offset 0) as p
         offset 0) as e;
end;
comment on function public.tensile_embed_table(text, regclass, text[], integer, text) is
  'returns the embedding of each row of a relation, read with the caller''s rights, with the row''s key: the primary '
  'key, or the columns of keys. Of a model of pairs, side query or item says which columns the relation has. In FROM '
  'its rows stream';

-- The forecasts stream like predictions: a page has the rows of some whole series.
create function public.tensile_forecast(
  model text, relation regclass, horizon integer default null, future regclass default null,
  series jsonb default null, origin text default null, version integer default null
) returns table (
  series jsonb, target text, step integer, "time" text, value double precision, lower double precision,
  upper double precision
)
  language sql stable parallel unsafe rows 1000
begin atomic
  select f.row operator(pg_catalog.->) 0, f.row operator(pg_catalog.->>) 1,
         (f.row operator(pg_catalog.->>) 2)::integer, f.row operator(pg_catalog.->>) 3,
         (f.row operator(pg_catalog.->>) 4)::double precision, (f.row operator(pg_catalog.->>) 5)::double precision,
         (f.row operator(pg_catalog.->>) 6)::double precision
    from (select pg_catalog.jsonb_array_elements(
                   coalesce(tensile.page_error((p.page).error), (p.page).targets)::jsonb) as row
            from (select tensile.prediction_pages((tensile.call('forecast', pg_catalog.jsonb_build_object(
                          'model', tensile_forecast.model, 'relation', tensile_forecast.relation::oid::bigint,
                          'horizon', tensile_forecast.horizon, 'future', tensile_forecast.future::oid::bigint,
                          'series', $5, 'origin', tensile_forecast.origin, 'version', tensile_forecast.version,
                          'search_path', pg_catalog.current_setting('search_path')))
                        operator(pg_catalog.->>) 'reading')::bigint) as page
                 offset 0) as p
         offset 0) as f;
end;
comment on function public.tensile_forecast(text, regclass, integer, regclass, jsonb, text, integer) is
  'forecasts the next steps of each series of a relation, which the caller''s session reads: the columns that name the '
  'series, the target, the step, its time, the median, and both ends of the interval. future is a relation with future '
  'values of known columns, series chooses one series, and values after origin are not used. In FROM its rows stream';

-- The typed form: the rows themselves, of the relation whose row type the argument has, whose name is that of its
-- relation. All columns are the key of tensile_predict_table, and the key becomes a row again. PostgreSQL writes this
-- body, too, in place of a call in FROM, so the rows stream: it would not if an argument were a sub-select. A body of the
-- form "begin atomic" can have no polymorphic arguments, so all names are qualified.
create function public.tensile_predict_rows(
  model text, input anyelement, version integer default null, with_probabilities boolean default false
) returns table ("row" anyelement, value double precision, label text, probabilities jsonb, targets jsonb)
  language sql stable parallel unsafe rows 100000
as $$
  select pg_catalog.jsonb_populate_record(input, p.key), p.value, p.label, p.probabilities, p.targets
    from public.tensile_predict_table(
           model, pg_catalog.pg_typeof(input)::pg_catalog.text::pg_catalog.regclass, array['*'], version,
           with_probabilities) as p
$$;
comment on function public.tensile_predict_rows(text, anyelement, integer, boolean) is
  'predicts for all rows of the relation whose row type the input has, which may be null: returns each row beside its '
  'answers, as in select (r.row).*, r.value from tensile_predict_rows(''m'', null::customers) as r';

-- Predictions of a table that a job computes. The table belongs to the role tensile_data: see 57_prediction_tables.sql.
create function tensile.view_parts(view text, callers_schema text, argument text) returns text[]
  language plpgsql stable parallel unsafe
as $$
declare
  kind constant text := case argument when 'function_name' then 'function' else 'view' end;
  parts text[];
begin
  if view is null then
    raise exception '% is null', argument
      using errcode = 'null_value_not_allowed', hint = format('Give a name for the %s.', kind);
  end if;
  begin
    parts := parse_ident(view);
  exception when invalid_parameter_value then
    parts := '{}';
  end;
  if cardinality(parts) = 1 then
    parts := array[callers_schema, parts[1]];
  end if;
  if cardinality(parts) <> 2 or parts[1] is null then
    raise exception '% is "%", not a name', argument, view
      using errcode = 'invalid_name',
            hint = case when cardinality(parts) = 2 then 'No schema is selected: name one, as in ''public.predicted''.'
                        else format('Give the name of a %1$s, or schema.%1$s, with quotes where SQL needs them: ''"My %1$s"''.', kind) end;
  end if;
  return array[left(parts[1], 63), left(parts[2], 63)];
end
$$;
comment on function tensile.view_parts(text, text, text) is
  'returns schema and name of a view or function to create; without a schema it is the given one. argument names the '
  'argument, for the error messages';

create function tensile.predict_into(request jsonb) returns bigint
  language sql volatile parallel unsafe
  return (tensile.call('predict_into', request) ->> 'job')::bigint;
comment on function tensile.predict_into(jsonb) is 'enqueues the prediction that the request describes';

create function public.tensile_predict_into(
  model text, relation regclass, output text, keys text[] default null, version integer default null,
  with_probabilities boolean default false, priority integer default 0, max_runtime interval default null,
  depends_on bigint[] default null, not_before timestamptz default null, idempotency_key text default null,
  snapshot boolean default false
) returns bigint
  language sql volatile parallel unsafe
  return tensile.predict_into(pg_catalog.jsonb_build_object(
    'model', model, 'relation', relation::oid::bigint, 'output', output, 'keys', keys, 'version', version,
    'with_probabilities', with_probabilities, 'priority', priority,
    'max_runtime_s', extract(epoch from max_runtime), 'depends_on', depends_on, 'not_before', not_before,
    'idempotency_key', idempotency_key, 'snapshot', snapshot,
    'callers_schema', pg_catalog.current_schema(), 'search_path', pg_catalog.current_setting('search_path')));
comment on function public.tensile_predict_into is
  'enqueues a job that predicts for all rows of a relation, and creates the view output, which belongs to the caller and '
  'shows the answers once the job has succeeded; returns the job''s number. If the job fails or is cancelled, the view is '
  'dropped';

create procedure public.tensile_predict_into_and_wait(
  model text, relation regclass, output text, keys text[] default null, version integer default null,
  with_probabilities boolean default false, priority integer default 0, max_runtime interval default null,
  depends_on bigint[] default null, not_before timestamptz default null, idempotency_key text default null,
  snapshot boolean default false, inout job bigint default null
)
  language plpgsql
as $$
begin
  job := public.tensile_predict_into(
    model, relation, output, keys, version, with_probabilities, priority, max_runtime, depends_on, not_before,
    idempotency_key, snapshot);
  call tensile.follow_to_end(job, 'tensile_predict_into'::pg_catalog.text);
end
$$;
comment on procedure public.tensile_predict_into_and_wait is
  'enqueues a prediction of a relation into a view, commits, and returns when the job has ended; raises the error of a '
  'failed job. The job continues if the call is cancelled';

-- A view, a function and a trigger are made by the caller's session, with the caller's rights. So they belong to the
-- caller, and PostgreSQL checks whether the caller may make them.
create function tensile.prediction_function(kind text) returns text[]
  language sql immutable parallel safe
  return case kind when 'value' then array['tensile_predict', 'double precision']
                   when 'labels' then array['tensile_predict_labels', 'text[]']
                   when 'values' then array['tensile_predict_values', 'double precision[]']
                   else array['tensile_predict_label', 'text'] end;
comment on function tensile.prediction_function(text) is
  'returns the function that predicts for a row by a model whose predictions have this kind, and the type of its result';

create function tensile.create_predict_view(model text, relation regclass, view text, callers_schema name)
  returns regclass
  language plpgsql volatile parallel unsafe
as $$
declare
  described jsonb;
  parts text[];
  predicted text;
begin
  perform public.tensile_require_role('tensile_user');
  described := tensile.call('describe_prediction', jsonb_build_object(
    'model', create_predict_view.model, 'relation', create_predict_view.relation::oid::bigint));
  parts := tensile.view_parts(view, callers_schema, 'view');
  predicted := 'predicted_' || case when (described -> 'several')::boolean then 'targets' else described ->> 'target' end;
  if described -> 'columns' ? predicted then
    raise exception 'relation % has a column "%", which the view adds', described ->> 'relation', predicted
      using errcode = 'duplicate_column', hint = 'Name a view of the relation without that column.';
  end if;
  execute format(
    'create view %I.%I as select t.*, public.%I(%L, t.*) as %I from %s as t',
    parts[1], parts[2],
    (tensile.prediction_function(described ->> 'kind'))[1], model, predicted, described ->> 'relation');
  return format('%I.%I', parts[1], parts[2])::regclass;
end
$$;
comment on function tensile.create_predict_view(text, regclass, text, name) is
  'implements tensile_create_predict_view; a view without a schema is made in the given one';

create function public.tensile_create_predict_view(model text, relation regclass, view text) returns regclass
  language sql volatile parallel unsafe
  return tensile.create_predict_view(model, relation, view, pg_catalog.current_schema());
comment on function public.tensile_create_predict_view(text, regclass, text) is
  'creates a view with all columns of a relation and the model''s prediction for each row, in a column named predicted_ '
  'and the target, for several target columns predicted_targets';

create function tensile.create_predict_function(model text, relation regclass, function_name text, callers_schema name)
  returns regprocedure
  language plpgsql volatile parallel unsafe
as $$
#variable_conflict use_variable
declare
  most constant int := current_setting('max_function_args')::int;
  described jsonb;
  parts text[];
  needed bigint;
  parameters text;
  fields text;
  types text;
  signature regprocedure;
begin
  perform public.tensile_require_role('tensile_user');
  described := tensile.call('describe_prediction', jsonb_build_object(
    'model', model, 'relation', relation::oid::bigint));
  parts := tensile.view_parts(function_name, callers_schema, 'function_name');
  -- An argument has no type modifier, so a value of type character(n) is padded as a column of the relation pads it.
  select count(*), string_agg(format('%I %s', a.attname, format_type(a.atttypid, null)), ', ' order by a.attnum),
         string_agg(format_type(a.atttypid, null), ', ' order by a.attnum),
         string_agg(format(case when a.atttypid = 'bpchar'::regtype and a.atttypmod > 4
                                then 'pg_catalog.rpad($%1$s, greatest(pg_catalog.length($%1$s), %3$s)) as %2$I'
                                else '$%1$s as %2$I' end, a.place, a.attname, a.atttypmod - 4), ', ' order by a.attnum)
    into needed, parameters, types, fields
    from (select row_number() over (order by c.attnum) as place, c.*
            from pg_attribute as c
           where c.attrelid = relation and c.attnum > 0 and not c.attisdropped
             and described -> 'needed' ? c.attname::text) as a;
  if needed > most then
    raise exception 'model "%" needs % columns, and a function has at most % arguments', model, needed, most
      using errcode = 'too_many_arguments',
            hint = format('Call tensile_predict(%L, input) with a jsonb object of the columns.', model);
  end if;
  execute format(
    'create function %I.%I(%s) returns %s language sql stable parallel unsafe'
    ' return public.%I(%L, (select tensile.row_json(r) from (select %s) as r))',
    parts[1], parts[2], parameters,
    (tensile.prediction_function(described ->> 'kind'))[2], (tensile.prediction_function(described ->> 'kind'))[1],
    model, fields);
  signature := format('%I.%I(%s)', parts[1], parts[2], types)::regprocedure;
  execute format('comment on function %s is %L', signature,
                 format('predicts %s by the model "%s"',
                        case when (described -> 'several')::boolean then described ->> 'target'
                             else format('"%s"', described ->> 'target') end, model));
  return signature;
end
$$;
comment on function tensile.create_predict_function(text, regclass, text, name) is
  'implements tensile_create_predict_function; a function without a schema is made in the given one';

create function public.tensile_create_predict_function(model text, relation regclass, function_name text)
  returns regprocedure
  language sql volatile parallel unsafe
  return tensile.create_predict_function(model, relation, function_name, pg_catalog.current_schema());
comment on function public.tensile_create_predict_function(text, regclass, text) is
  'creates a function that predicts for one row, with an argument for each column that the model needs, which has the '
  'name and type of the relation''s column';

create function public.tensile_create_predict_trigger(model text, relation regclass, column_name name) returns void
  language plpgsql volatile parallel unsafe
as $$
#variable_conflict use_variable
declare
  described jsonb;
  type_name text;
begin
  perform public.tensile_require_role('tensile_user');
  described := tensile.call('describe_prediction', jsonb_build_object(
    'model', model, 'relation', relation::oid::bigint));
  type_name := described -> 'columns' ->> column_name;
  if type_name is null then
    raise exception 'relation % has no column "%"', described ->> 'relation', column_name
      using errcode = 'undefined_column', detail = 'It is named in column_name.',
            hint = format('Add it: alter table %s add column %I %s;', described ->> 'relation', column_name,
                          (tensile.prediction_function(described ->> 'kind'))[2]);
  end if;
  execute format(
    'create trigger %I before insert or update on %s for each row'
    ' execute function tensile.predict_column(%L, %L, %L)',
    left('tensile_predict_' || column_name, 63), described ->> 'relation', model, column_name,
    described ->> 'kind');
end
$$;
comment on function public.tensile_create_predict_trigger(text, regclass, name) is
  'creates a trigger that stores the model''s prediction for each inserted and updated row in a column of the row';

create function tensile.predict_column() returns trigger
  language plpgsql
as $$
declare
  predicted jsonb;
begin
  predicted := case tg_argv[2] when 'label' then to_jsonb(public.tensile_predict_label(tg_argv[0], new))
                               when 'labels' then to_jsonb(public.tensile_predict_labels(tg_argv[0], new))
                               when 'values' then to_jsonb(public.tensile_predict_values(tg_argv[0], new))
                               else to_jsonb(public.tensile_predict(tg_argv[0], new)) end;
  return jsonb_populate_record(new, jsonb_build_object(tg_argv[1], predicted));
end
$$;
comment on function tensile.predict_column() is
  'trigger of tensile_create_predict_trigger; its arguments are the model, the column, and the kind of predictions';

-- Evaluation ---------------------------------------------------------------------------------------------------

create function tensile.row_json(input anyelement) returns jsonb
  language plpgsql stable parallel unsafe
as $$
begin
  return to_jsonb(input);
end
$$;
comment on function tensile.row_json(anyelement) is
  'converts a row to JSON, independently of the session''s settings, which 82_text_settings.sql pins';

create function tensile.key_text(input anyelement) returns text
  language plpgsql stable parallel unsafe
as $$
begin
  return input::text;
end
$$;
comment on function tensile.key_text(anyelement) is
  'converts a value to text, independently of the session''s settings, which 82_text_settings.sql pins';

create function tensile.evaluation(model text, relation oid, version integer, callers_path text)
  returns table (metric text, value double precision)
  language plpgsql volatile parallel unsafe rows 5
as $$
#variable_conflict use_column
declare
  answer jsonb;
begin
  perform public.tensile_require_role('tensile_user');
  answer := tensile.call('evaluate', jsonb_build_object(
    'model', model, 'version', version, 'relation', relation::bigint, 'search_path', callers_path));
  return query
  select entry.key, entry.value::double precision
    from jsonb_each_text(answer -> 'metrics') as entry
   order by entry.key;
end
$$;
comment on function tensile.evaluation(text, oid, integer, text) is
  'implements tensile_evaluate; reads a view under the caller''s search_path, because the view''s functions may need '
  'it';

create function public.tensile_evaluate(model text, relation regclass default null, version integer default null)
  returns table (metric text, value double precision)
  language sql volatile parallel unsafe rows 5
begin atomic
  select e.metric, e.value
    from tensile.evaluation(model, relation::oid, version, pg_catalog.current_setting('search_path')) as e;
end;
comment on function public.tensile_evaluate(text, regclass, integer) is
  'returns the metrics of the model on the rows of a relation; without a relation, on the held-out rows of its '
  'training';

create function tensile.split_parts(model text, relation oid, version integer, callers_path text)
  returns table (key jsonb, part text)
  language plpgsql volatile parallel unsafe rows 1000
  set bytea_output = 'hex'  -- a key is hashed as its text, which no setting of the session may change
  set intervalstyle = 'postgres'
  set datestyle = 'ISO'
  set extra_float_digits = 1
as $$
declare
  reading jsonb;
  page jsonb;
begin
  perform public.tensile_require_role('tensile_user');
  reading := tensile.call('split', jsonb_build_object(
    'model', model, 'relation', relation::bigint, 'version', version, 'search_path', callers_path));
  loop
    page := tensile.call('split', reading) -> 'rows';
    exit when jsonb_array_length(page) = 0;
    return query select (r.value ->> 0)::jsonb, r.value ->> 1 from jsonb_array_elements(page) as r;
  end loop;
end
$$;
comment on function tensile.split_parts(text, oid, integer, text) is
  'implements tensile_split; reads a view under the caller''s search_path, because the view''s functions may need it';

create function public.tensile_split(model text, relation regclass default null, version integer default null)
  returns table (key jsonb, part text)
  language sql volatile parallel unsafe rows 1000
begin atomic
  select s.key, s.part
    from tensile.split_parts(model, relation::oid, version, pg_catalog.current_setting('search_path')) as s;
end;
comment on function public.tensile_split(text, regclass, integer) is
  'returns for each row its part of the split: train, valid or test, by the rule that the version was trained with, or '
  'null for a row without a target. key contains the primary key, or without one the columns that identify rows. '
  'Without a relation, it reads the relation that the version was trained on. Only the model''s owner may call it';

create function public.tensile_data_report(job bigint)
  returns table (section text, subject text, fact text, value text, warning text)
  language plpgsql stable parallel unsafe rows 50
as $$
declare
  reported record;
begin
  perform public.tensile_require_role('tensile_user');
  select j.state, j.owner_oid = tensile.current_role_oid() and j.installation = tensile.installation() as own, r.report
    into reported
    from tensile.jobs as j left join tensile.data_reports as r on r.job_id = j.job_id
   where j.job_id = tensile_data_report.job;
  if not found then
    perform tensile.raise_no_job(job);
  elsif reported.report is null and not reported.own then
    raise exception 'job % belongs to another role', job
      using errcode = 'insufficient_privilege',
            hint = 'Only the owner of a job may read its report, because a report names classes of the table.';
  elsif reported.report is null then
    raise notice 'job % has no report: it is %, and a report is written once the table has been read', job,
                 reported.state;
    return;
  end if;
  return query
  select f.section, f.subject, f.fact, f.value, f.warning
    from rows from (jsonb_to_recordset(reported.report)
                      as (section text, subject text, fact text, value text, warning text)) with ordinality
           as f (section, subject, fact, value, warning, place)
   order by f.place;
end
$$;
comment on function public.tensile_data_report(bigint) is
  'describes the data of a job''s table: rows, parts of the split, target, columns and their encoding, and how the '
  'result compares with a constant prediction; a warning names a doubtful fact. Only the owner of the job may call it';
