-- The functions for users. All are security invoker, so a user can do nothing with them beyond the privileges on the
-- tables.
--
-- All functions pin search_path (80_search_path.sql sets it), so that names mean PostgreSQL's own functions. Some
-- functions need the caller's path. Such a public function is a wrapper whose body is parsed when it is created, and
-- which passes the caller's schema or path to a pinned function of schema tensile.

-- Training -----------------------------------------------------------------------------------------------------

-- The parameters of a training stand once, in the declaration of tensile_train. The installer writes them in place of
-- the words between at signs (indb_tensile/catalog/train_signature.py).

create function tensile.training_request(
  @TRAIN_PARAMETERS@
) returns jsonb
  language sql stable
  return pg_catalog.jsonb_build_object(
    @TRAIN_FIELDS@,
    'search_path', pg_catalog.current_setting('search_path'));
comment on function tensile.training_request is
  'returns the arguments of a training in the form that the bridge reads, with the search_path for reading the '
  'relation';

create function tensile.train(request jsonb) returns bigint
  language sql volatile parallel unsafe
  return (tensile.call('train', request) ->> 'job')::bigint;
comment on function tensile.train(jsonb) is 'enqueues the training that training_request describes';

-- tensile_train and tensile_explain pass the caller's search_path on, because a view may call functions that need it.
-- So they have no SET clause. Their bodies do not depend on the caller's search_path, because PostgreSQL resolved their
-- names when they were created. An error has a line of CONTEXT for each function that PostgreSQL cannot inline; it
-- inlines tensile_train completely.

create function public.tensile_train(
  model text, relation regclass, target text default null, task text default null,
  architecture text default null, hyperparams jsonb default null, features text[] default null,
  exclude text[] default null, preprocess jsonb default null, split jsonb default null,
  metric text default null, early_stop jsonb default null, init_from text default null,
  priority integer default 0, memory_limit text default null, max_runtime interval default null,
  deploy text default 'if_better', depends_on bigint[] default null, not_before timestamptz default null,
  idempotency_key text default null, snapshot boolean default false
) returns bigint
  language sql volatile parallel unsafe
  return tensile.train(tensile.training_request(
      @TRAIN_ARGUMENTS@));
comment on function public.tensile_train is
  'enqueues a training of the model on the relation and returns the job''s number; the job can start once the '
  'transaction has committed. The rows of a view, of a foreign or temporary table, or behind policies are first copied '
  'into a snapshot table';

create function public.tensile_train_query(
  @TRAIN_QUERY_PARAMETERS@
) returns bigint
  language sql volatile parallel unsafe
  return tensile.train(tensile.training_request(
      @TRAIN_QUERY_ARGUMENTS@)
    operator(pg_catalog.||) pg_catalog.jsonb_build_object('query', query));
comment on function public.tensile_train_query is
  'enqueues a training of the model on the rows of a query and returns the job''s number; the caller''s session runs the '
  'query now and copies its rows into a snapshot table, and the job can start once the transaction has committed';

create function tensile.follow_job(job bigint, told text) returns text
  language plpgsql volatile parallel unsafe
as $$
declare
  followed record;
  step text;
begin
  select j.state, j.phase, j.error_sqlstate, j.error_message, j.error_detail, j.error_hint, v.number, v.not_deployed
    into followed
    from tensile.jobs as j left join tensile.model_versions as v on v.version_id = j.version_id
   where j.job_id = job;
  if not found or followed.state = 'succeeded' then
    if followed.not_deployed is not null then
      raise notice 'job %: version % is not deployed: %', job, followed.number, followed.not_deployed
        using hint = 'With deploy => ''always'' a training deploys its version without a comparison.';
    end if;
    return null;
  elsif followed.state = 'failed' then
    step := tensile.raise_error(
      followed.error_sqlstate, followed.error_message, followed.error_detail, followed.error_hint);
  elsif followed.state = 'cancelled' then
    raise exception 'job % was cancelled', job
      using errcode = 'query_canceled', detail = coalesce(followed.error_message, '');
  end if;
  step := coalesce(followed.phase::text, followed.state::text);
  if told is distinct from step then
    raise notice 'job %: %', job, step;
  end if;
  return step;
end
$$;
comment on function tensile.follow_job(bigint, text) is
  'returns the current phase or state of a job, with a notice if it differs from the one given; returns null once the '
  'job has succeeded, and raises the job''s error if it failed';

create procedure public.tensile_train_and_wait(
  @TRAIN_PARAMETERS@, inout job bigint default null
)
  language plpgsql
as $$
declare  -- no SET clause, with which a procedure may not commit. So all names are qualified, and no operator is used.
  step pg_catalog.text;
  committed pg_catalog.bool;
begin
  job := public.tensile_train(
      @TRAIN_ARGUMENTS@);
  call tensile.try_commit(committed);  -- the job exists from here on
  if not committed then
    raise exception 'tensile_train_and_wait commits, which is not possible in a transaction block or in a function'
      using errcode := 'invalid_transaction_termination',
            hint := 'Call it outside of both; or use tensile_train(...), commit, and then tensile_wait(job).';
  end if;
  loop
    step := tensile.follow_job(job, step);
    exit when step is null;
    commit;  -- so that between polls no snapshot keeps VACUUM from removing dead rows of the queue
    perform pg_catalog.pg_sleep(0.1::pg_catalog.float8);
  end loop;
end
$$;
comment on procedure public.tensile_train_and_wait is
  'enqueues a training, commits, and returns when the job has ended; raises the error of a failed job. The job '
  'continues if the call is cancelled';

create function public.tensile_explain(
  @TRAIN_PARAMETERS@
) returns table (policy text, peak_bytes bigint, floor_bytes bigint, bound_bytes bigint, saved double precision,
  iteration_ms double precision, overhead double precision, stall_ms double precision, swaps integer,
  swapped_bytes bigint, recomputed integer, planning_ms double precision, starts_now boolean, note text)
  language sql volatile parallel unsafe
begin atomic
  select f.policy, f.peak_bytes, f.floor_bytes, f.bound_bytes, f.saved, f.iteration_ms,
         f.overhead, f.stall_ms, f.swaps, f.swapped_bytes, f.recomputed, f.planning_ms, f.starts_now,
         f.note
    from pg_catalog.jsonb_to_recordset(tensile.call('explain', tensile.training_request(
      @TRAIN_ARGUMENTS@)) operator(pg_catalog.->) 'rows')
      as f (policy text, peak_bytes bigint, floor_bytes bigint, bound_bytes bigint, saved double precision,
        iteration_ms double precision, overhead double precision, stall_ms double precision, swaps integer,
        swapped_bytes bigint, recomputed integer, planning_ms double precision, starts_now boolean, note text);
end;
comment on function public.tensile_explain is
  'predicts the memory and time of this training under each policy, and whether it would start now. saved is relative '
  'to the peak of the policy liveness, and overhead to its time. Nothing is enqueued or allocated';

-- Waiting and stopping -----------------------------------------------------------------------------------------

create function public.tensile_wait(job bigint, timeout interval default '1 minute') returns tensile.job_state
  language plpgsql volatile parallel unsafe
as $$
declare
  deadline constant timestamptz := coalesce(clock_timestamp() + timeout, 'infinity');
  pause_s double precision := 0.01;
  awaited record;
begin
  perform public.tensile_require_role('tensile_user');
  loop
    select j.state, j.enqueued_xact into awaited from tensile.jobs as j where j.job_id = job;
    if not found then
      perform tensile.raise_no_job(job);
    end if;
    exit when awaited.state in ('succeeded', 'failed', 'cancelled') or clock_timestamp() >= deadline;
    if awaited.enqueued_xact = pg_current_xact_id_if_assigned() then
      raise exception 'job % cannot start before this transaction commits: waiting for it here would never end', job
        using errcode = 'object_not_in_prerequisite_state',
              hint = 'Commit first, then wait; or use: call tensile_train_and_wait(...).';
    elsif current_setting('transaction_isolation') <> 'read committed' then
      raise exception 'a transaction of isolation level % never sees job % end',
                      current_setting('transaction_isolation'), job
        using errcode = 'object_not_in_prerequisite_state',
              hint = 'Wait in a transaction of isolation level read committed.';
    end if;
    if isfinite(deadline) then
      pause_s := least(pause_s, greatest(0, extract(epoch from deadline - clock_timestamp())));
    end if;
    perform pg_sleep(pause_s);
    pause_s := least(pause_s * 1.5, 0.2);
  end loop;
  return awaited.state;
end
$$;
comment on function public.tensile_wait(bigint, interval) is
  'waits until the job has ended or the timeout is over (null: no timeout), and returns the job''s state. For short '
  'waits, because it holds a snapshot of the database';

create function public.tensile_cancel(job bigint) returns boolean
  language plpgsql volatile parallel unsafe
as $$
declare
  current_state tensile.job_state;
begin
  perform public.tensile_require_role('tensile_user');
  update tensile.jobs as j set cancel_requested = true
   where j.job_id = job and j.state in ('queued', 'starting', 'running');
  if found then
    return true;
  end if;
  select j.state into current_state from tensile.jobs as j where j.job_id = job;
  if not found then
    perform tensile.raise_no_job(job);
  elsif current_state in ('queued', 'starting', 'running') then
    raise exception 'job % belongs to another role', job
      using errcode = 'insufficient_privilege', hint = 'Its owner, or a member of tensile_admin, can cancel it.';
  end if;
  return false;
end
$$;
comment on function public.tensile_cancel(bigint) is
  'cancels a job: a queued job at once, an active job within a heartbeat; returns false if the job had ended already';

create function public.tensile_pause(job bigint) returns void
  language plpgsql volatile parallel unsafe
as $$
begin
  perform public.tensile_require_role('tensile_user');
  update tensile.jobs as j set pause_requested = true
   where j.job_id = job and j.state in ('queued', 'starting', 'running')
     and not j.pause_requested and not j.cancel_requested;
  if not found then
    perform tensile.raise_no_change(job, 'pause');
  end if;
end
$$;
comment on function public.tensile_pause(bigint) is
  'pauses a job until tensile_resume: no controller starts a queued job, and a job that trains gives up its device '
  'memory at the end of its iteration and waits in host memory, or in its checkpoint where host memory is full. The '
  'result of the training does not change. A job that is about to publish its version may end first';

create function public.tensile_resume(job bigint) returns void
  language plpgsql volatile parallel unsafe
as $$
begin
  perform public.tensile_require_role('tensile_user');
  update tensile.jobs as j set pause_requested = false
   where j.job_id = job and j.state in ('queued', 'starting', 'running')
     and j.pause_requested and not j.cancel_requested;
  if not found then
    perform tensile.raise_no_change(job, 'resume');
  end if;
end
$$;
comment on function public.tensile_resume(bigint) is
  'resumes a job that tensile_pause has paused: it continues where it was as soon as it has device memory again';

create function tensile.raise_no_change(job bigint, verb text) returns void
  language plpgsql stable
as $$
declare
  found_job record;
begin
  select j.state, j.finished_at, j.pause_requested, j.cancel_requested into found_job
    from tensile.jobs as j where j.job_id = job;
  if not found then
    perform tensile.raise_no_job(job);
  elsif found_job.finished_at is not null then
    raise exception 'job % has ended: %', job, found_job.state
      using errcode = 'object_not_in_prerequisite_state',
            detail = format('It ended at %s. Only queued and active jobs can be paused and resumed.', found_job.finished_at),
            hint = 'Train again: select tensile_train(…);';
  elsif found_job.cancel_requested then
    raise exception 'job % is being cancelled', job
      using errcode = 'object_not_in_prerequisite_state',
            detail = 'Its cancellation was requested before, and cannot be withdrawn.',
            hint = 'Train again: select tensile_train(…);';
  elsif verb = 'pause' and found_job.pause_requested then
    raise exception 'job % is paused already', job
      using errcode = 'object_not_in_prerequisite_state',
            detail = format('The job is %s, and stays paused until it is resumed.', found_job.state),
            hint = format('To let it continue: select tensile_resume(%s);', job);
  elsif verb = 'resume' and not found_job.pause_requested then
    raise exception 'job % is not paused', job
      using errcode = 'object_not_in_prerequisite_state', detail = format('The job is %s.', found_job.state),
            hint = 'To see what it waits for: select * from tensile.stat_queue;';
  else
    raise exception 'job % belongs to another role', job
      using errcode = 'insufficient_privilege',
            detail = format('Role "%s" may see the job, and may not %s it.', current_user, verb),
            hint = format('Its owner, or a member of tensile_admin, can %s it.', verb);
  end if;
end
$$;
comment on function tensile.raise_no_change(bigint, text) is
  'raises the error that says why the caller cannot pause or resume this job';

create function tensile.raise_no_job(job bigint) returns void
  language plpgsql stable
as $$
begin
  raise exception 'there is no job %', job
    using errcode = 'undefined_object', hint = 'See your jobs: select * from tensile.stat_jobs;';
end
$$;
comment on function tensile.raise_no_job(bigint) is 'raises the error that the caller sees no job of this number';

create function tensile.relation_title(oid oid, schema text, name text) returns text
  language sql immutable parallel safe
  return case when oid operator(pg_catalog.=) 0::pg_catalog.oid then name
              else pg_catalog.format('%I.%I', schema, name) end;
comment on function tensile.relation_title(oid, text, text) is
  'returns the quoted name of the relation of a job or version, or "query" if a query gave the rows';

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

create function tensile.check_row_size(input anycompatible, row_number bigint) returns boolean
  language plpgsql stable parallel unsafe
as $$
declare
  most_bytes constant bigint := 8388608;  -- the same limit as in evaluations.py
  most_elements constant bigint := 1000000;
  type_name constant text := pg_catalog.pg_typeof(input)::text;
  size_bytes bigint := pg_catalog.pg_column_size(input);
  elements bigint;
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
    raise exception 'row % has % values, more than the % that a row may have', row_number, elements, most_elements
      using errcode = 'program_limit_exceeded', hint = 'Predict for an array of fewer values.';
  elsif size_bytes operator(pg_catalog.>) most_bytes then
    raise exception 'row % has % bytes, more than the % that a row may have', row_number, size_bytes, most_bytes
      using errcode = 'program_limit_exceeded',
            hint = 'Give the model''s columns only, or arrays of fewer values.';
  end if;
  return true;
end
$$;
comment on function tensile.check_row_size(anycompatible, bigint) is
  'returns true, or raises an error if a row has more than 8 MB or an array more than a million values. Called for '
  'rows above 32 kB';

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
begin
  -- PostgreSQL compresses at most 255 times, so a value of 8 MB has at least 32 kB when it is compressed.
  if pg_column_size(input) >= 32768 then
    perform tensile.check_row_size(input, 1);
  end if;
  return tensile.call('predict', jsonb_build_object(
    'model', model, 'version', version, 'kind', kind, 'form', tensile.row_form(pg_typeof(input))),
    array[to_jsonb(input)]) #> '{values,0}';
end
$$;
comment on function tensile.prediction(text, anycompatible, integer, text) is
  'returns one prediction, of kind value, label, proba or vector';

create function public.tensile_predict(model text, input anycompatible, version integer default null)
  returns double precision
  language plpgsql stable parallel unsafe
as $$
begin
  perform public.tensile_require_role('tensile_user');
  return (tensile.prediction(model, input, version, 'value') #>> '{}')::double precision;
end
$$;
comment on function public.tensile_predict(text, anycompatible, integer) is
  'predicts for a row: returns the value, or the label if labels are numbers or booleans (true is 1)';

create function public.tensile_predict_label(model text, input anycompatible, version integer default null)
  returns text
  language plpgsql stable parallel unsafe
as $$
begin
  perform public.tensile_require_role('tensile_user');
  return tensile.prediction(model, input, version, 'label') #>> '{}';
end
$$;
comment on function public.tensile_predict_label(text, anycompatible, integer) is
  'predicts for a row: returns the label as text';

create function public.tensile_predict_proba(model text, input anycompatible, version integer default null)
  returns table (label text, probability double precision)
  language plpgsql stable parallel unsafe rows 10
as $$
begin
  perform public.tensile_require_role('tensile_user');
  return query
  select entry.key, entry.value::double precision
    from jsonb_each_text(nullif(tensile.prediction(model, input, version, 'proba'), 'null')) as entry
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
  outputs jsonb;
begin
  perform public.tensile_require_role('tensile_user');
  outputs := nullif(tensile.prediction(model, input, version, 'vector'), 'null');
  return case when outputs is not null
              then array(select entry.value::double precision
                           from jsonb_array_elements_text(outputs) with ordinality as entry (value, place)
                          order by entry.place) end;
end
$$;
comment on function public.tensile_predict_vector(text, anycompatible, integer) is
  'predicts for a row: returns the outputs of the model''s network';

create function tensile.prediction_part(model text, version integer, form text, first_row bigint, rows jsonb[])
  returns jsonb
  language plpgsql stable parallel unsafe
as $$
begin
  return tensile.call('predict', jsonb_build_object(
    'model', model, 'version', version, 'kind', 'value', 'form', form, 'first_row', first_row), rows);
end
$$;
comment on function tensile.prediction_part(text, integer, text, bigint, jsonb[]) is
  'predicts for a part of a batch, whose first row has this number; returns the values and the number of the version '
  'that made them';

create function tensile.numbers_of(list jsonb) returns double precision[]
  language plpgsql immutable parallel safe
as $$
begin
  return array(select entry.value::double precision
                 from jsonb_array_elements_text(list) with ordinality as entry (value, place) order by entry.place);
end
$$;
comment on function tensile.numbers_of(jsonb) is
  'converts a list of numbers, or of texts that are numbers, to an array';

-- Predicts part by part, so that neither this session nor the service ever holds the JSON of all rows. The answer for
-- the first part names the version that predicted, and the same version predicts for the other parts.
--
-- PL/pgSQL does not accept an array of anonymous records as an argument, but it accepts a record with such an array in
-- its field f1. `example` is a null of the elements' type. PL/pgSQL keeps the plans of its statements for each
-- combination of argument types; without `example` it would use the same plans for arrays of all types.
create function tensile.predictions(
  model text, list record, example anycompatible, version integer, rows_before bigint
) returns double precision[]
  language plpgsql stable parallel unsafe
  set lock_timeout = '2s'
as $$
declare
  part_bytes constant integer := 524288;
  part_rows constant integer := 4096;
  dimensions constant integer := array_ndims(list.f1);
  form constant text := tensile.row_form(pg_typeof(example));
  answers double precision[] := '{}';
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
      answer := tensile.prediction_part(model, version, form, row_number + 1, array(
        select entry.value
          from jsonb_array_elements(
                 to_jsonb(list.f1[at_row:least(at_row + slice_rows - 1, array_upper(list.f1, 1))]))
               with ordinality as entry (value, place) order by entry.place));
      version := (answer ->> 'version')::integer;
      row_number := row_number + jsonb_array_length(answer -> 'values');
      answers := answers || tensile.numbers_of(answer -> 'values');
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
      answer := tensile.prediction_part(model, version, form, row_number - cardinality(rows), rows);
      version := (answer ->> 'version')::integer;
      answers := answers || tensile.numbers_of(answer -> 'values');
      rows := '{}';
      held_bytes := 0;
    end if;
    rows := rows || row_json;
    held_bytes := held_bytes + row_bytes;
  end loop;
  answer := tensile.prediction_part(model, version, form, row_number + 1 - cardinality(rows), rows);
  if list.f1 is not null then
    return answers || tensile.numbers_of(answer -> 'values');
  end if;
  return null;
end
$$;
comment on function tensile.predictions(text, record, anycompatible, integer, bigint) is
  'predicts for the rows of the array in the record''s field f1; `example` is a null of the elements'' type';

-- A long array is passed on in slices, because the record that holds an array is a copy of the array.
create function public.tensile_predict_batch(model text, inputs anycompatiblearray, version integer default null)
  returns double precision[]
  language sql stable parallel unsafe
as $$
  select case
    when coalesce(array_length(inputs, 1), 0) <= 4096
    then tensile.predictions(model, row(inputs), inputs[null::integer], version, 0)
    else array(
      with used as materialized (
        select tensile.prediction_part(model, version, 'value', 1, '{}') ->> 'version' as number,
               array_lower(inputs, 1) as first, array_upper(inputs, 1) as last,
               greatest(4096, array_length(inputs, 1) / 16) as step)
      select entry.value
        from used,
             lateral generate_series(used.first, used.last, used.step) as at_row,
             lateral unnest(tensile.predictions(
               model, row(inputs[at_row:least(at_row + used.step - 1, used.last)]), inputs[null::integer],
               used.number::integer, at_row - used.first)) with ordinality as entry (value, place)
       order by at_row, entry.place)
    end
$$;
comment on function public.tensile_predict_batch(text, anycompatiblearray, integer) is
  'predicts for many rows at once, in their order: tensile_predict_batch(''m'', array_agg(t)) from t. Returns an empty '
  'array for an empty array, and null for null';

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
begin
  perform public.tensile_require_role('tensile_user');
  return query
  select entry.key, entry.value::double precision
    from jsonb_each_text(tensile.call('evaluate', jsonb_build_object(
      'model', model, 'version', version, 'relation', relation::bigint, 'search_path', callers_path)) -> 'metrics') as entry
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

create function public.tensile_training_info(model text)
  returns table (version integer, deployed boolean, task tensile.task, target text, architecture jsonb,
    metric_name text, metric double precision, parameters bigint, weights_bytes bigint, relation text, job bigint,
    trained_at timestamptz)
  language plpgsql stable parallel unsafe rows 10
as $$
begin
  perform public.tensile_require_role('tensile_user');
  if not exists (select from tensile.models as m
                  where m.name = tensile_training_info.model and m.dropped_at is null) then
    perform tensile.raise_no_model(tensile_training_info.model);
  end if;
  return query
  select v.number, v.deployed, v.task, v.target, v.architecture, v.metric_name, v.metric, v.parameters,
         v.weights_bytes, case when v.relation_oid is not null
           then tensile.relation_title(v.relation_oid, v.relation_schema, v.relation_name) end,
         v.job_id, v.created_at
    from tensile.models as m
    join tensile.model_versions as v on v.model_id = m.model_id
   where m.name = tensile_training_info.model and m.dropped_at is null
   order by v.number desc;
end
$$;
comment on function public.tensile_training_info(text) is 'returns the versions of a model, the newest first';

-- Models -------------------------------------------------------------------------------------------------------

create function public.tensile_create_model(name text, architecture text default null, hyperparams jsonb default null)
  returns bigint
  language sql volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '2s'  -- another session may have taken the name and not committed yet
  return (tensile.call('create_model', pg_catalog.jsonb_build_object(
    'model', name, 'architecture', architecture, 'hyperparams', hyperparams)) ->> 'model')::bigint;
comment on function public.tensile_create_model(text, text, jsonb) is
  'defines the network of a model before its first training: the name of an architecture or a JSON object';

create function public.tensile_drop_model(model text) returns void
  language plpgsql volatile parallel unsafe
as $$
begin
  perform public.tensile_require_role('tensile_user');
  update tensile.models as m set dropped_at = now()
   where m.name = tensile_drop_model.model and m.dropped_at is null;
  if not found then
    if exists (select from tensile.models as m where m.name = tensile_drop_model.model and m.dropped_at is null) then
      raise exception 'model "%" belongs to another role', model
        using errcode = 'insufficient_privilege', hint = 'Its owner, or a member of tensile_admin, can drop it.';
    end if;
    perform tensile.raise_no_model(model);
  end if;
end
$$;
comment on function public.tensile_drop_model(text) is
  'drops a model with all its versions: no user sees it from then on, and a controller deletes its weights later';

create function tensile.raise_no_model(model text) returns void
  language plpgsql stable
as $$
begin
  raise exception 'there is no model "%"', model
    using errcode = 'undefined_object', hint = 'See your models: select * from tensile.model_list;';
end
$$;
comment on function tensile.raise_no_model(text) is 'raises the error that the caller sees no model of this name';

create function public.tensile_grant_model(model text, grantee name) returns void
  language plpgsql volatile parallel unsafe
as $$
declare
  granted_model bigint;
  role_oid oid;
begin
  perform public.tensile_require_role('tensile_user');
  select m.model_id into granted_model from tensile.models as m
   where m.name = tensile_grant_model.model and m.dropped_at is null;
  if not found then
    perform tensile.raise_no_model(model);
  end if;
  if grantee is null then
    raise exception 'no role is named to grant model "%" to', model
      using errcode = 'null_value_not_allowed', hint = 'Name a role, or public for all roles.';
  end if;
  select r.oid into role_oid from pg_catalog.pg_roles as r where r.rolname = grantee;
  if not found and grantee <> 'public' then
    raise exception 'there is no role "%"', grantee
      using errcode = 'undefined_object', hint = 'Name a role, or public for all roles.';
  end if;
  insert into tensile.model_privileges as p (model_id, grantee_oid, grantee_name)
  values (granted_model, coalesce(role_oid, 0), grantee)
  on conflict on constraint model_privileges_pkey do update set revoked_at = null where p.revoked_at is not null;
end
$$;
comment on function public.tensile_grant_model(text, name) is
  'allows a role (public: all roles) to see a model and to predict with it';

create function public.tensile_revoke_model(model text, grantee name) returns void
  language plpgsql volatile parallel unsafe
as $$
declare
  revoked_model bigint;
begin
  perform public.tensile_require_role('tensile_user');
  select m.model_id into revoked_model from tensile.models as m
   where m.name = tensile_revoke_model.model and m.dropped_at is null;
  if not found then
    perform tensile.raise_no_model(model);
  end if;
  if grantee is null then
    raise exception 'no role is named to revoke model "%" from', model
      using errcode = 'null_value_not_allowed', hint = 'Name a role, or public for all roles.';
  end if;
  update tensile.model_privileges as p set revoked_at = now()
   where p.model_id = revoked_model and p.revoked_at is null
     and (p.grantee_oid = (select r.oid from pg_roles as r where r.rolname = grantee)
          or p.grantee_oid = 0 and grantee = 'public'
          or p.grantee_name = grantee and not exists (select from pg_roles as r where r.oid = p.grantee_oid));
  -- A dropped role may still have a privilege to revoke, and to revoke from a role without a privilege is no error.
  if not found and grantee <> 'public' and not exists (
       select from pg_catalog.pg_roles as r where r.rolname = grantee) then
    raise exception 'there is no role "%"', grantee
      using errcode = 'undefined_object', hint = 'Name a role, or public for all roles.';
  end if;
end
$$;
comment on function public.tensile_revoke_model(text, name) is 'revokes what tensile_grant_model has granted';

-- Service ------------------------------------------------------------------------------------------------------

create function public.tensile_load_dataset(name text, table_name text default null) returns bigint
  language sql volatile parallel unsafe
  return (tensile.call('load_dataset', pg_catalog.jsonb_build_object(
    'dataset', name, 'table', table_name, 'schema', pg_catalog.current_schema())) ->> 'rows')::bigint;
comment on function public.tensile_load_dataset(text, text) is
  'creates a table with a sample data set, which trainers may read, and returns the number of its rows; the table is '
  'in the current schema unless table_name names another schema';

create function public.tensile_version() returns text
  language sql stable parallel safe
  return tensile.catalog_version();
comment on function public.tensile_version() is 'returns the version of the catalog in this database';

create function public.tensile_set_setting(name text, value jsonb) returns void
  language plpgsql volatile parallel unsafe
as $$
declare
  setting_kind text;
begin
  perform public.tensile_require_role('tensile_admin');
  select k.kind into setting_kind from tensile.known_settings() as k where k.name = tensile_set_setting.name;
  if not found then
    raise exception 'there is no setting "%"', name
      using errcode = 'undefined_object',
            hint = 'Known settings: ' || (select string_agg(k.name, ', ' order by k.name)
                                            from tensile.known_settings() as k) || '.';
  end if;
  if value is null then
    perform tensile.reset_setting(name);
    return;
  end if;
  if not tensile.setting_fits(setting_kind, value) then
    raise exception 'setting "%" is %', name, left(value::text, 100)
      using errcode = 'invalid_parameter_value',
            hint = case split_part(setting_kind, ' ', 1)
              when 'directory' then
                'Give an absolute path: select tensile_set_setting(''socket_directory'', ''"/run/tensile"'');'
              when 'interval' then
                format('Give an interval longer than zero, or null to keep for ever: select tensile_set_setting(%L, %L);',
                       name, '"30 days"')
              when 'bytes' then
                format('Give a number of bytes from 1: select tensile_set_setting(%L, %L);', name, '8589934592')
              else
                format('Give a whole number from 1, or null to keep all: select tensile_set_setting(%L, %L);', name, '5')
            end;
  end if;
  insert into tensile.settings as s (name, value)
  values (tensile_set_setting.name, tensile_set_setting.value)
  on conflict on constraint settings_pkey
  do update set value = excluded.value, changed_at = now(), changed_by = current_user;
end
$$;
comment on function public.tensile_set_setting(text, jsonb) is
  'changes a setting of the database, such as socket_directory or retain_jobs; the value null (SQL) restores the '
  'default. tensile.setting_list shows all settings';

create function tensile.checks(schema name)
  returns table (item text, ok boolean, detail text, hint text)
  language plpgsql volatile parallel unsafe rows 10
as $$
declare
  alive bigint;
  answer jsonb;
begin
  perform public.tensile_require_role('tensile_user');
  return query select 'catalog', true, 'version ' || tensile.catalog_version(), null::text;

  if pg_is_in_recovery() then
    return query
    select 'server', false, 'this server is a standby: it can be read, and takes no trainings',
           'Connect to the primary server to train and for all other writes.';
  end if;

  return query
  select 'worker''s role', r.rolcanlogin,
         case when r.rolcanlogin then 'tensile_worker may log in' else 'tensile_worker may not log in' end,
         case when not r.rolcanlogin then 'As a superuser: alter role tensile_worker login;' end
    from pg_catalog.pg_roles as r where r.rolname = 'tensile_worker';

  return query
  select 'reader''s role', r.rolcanlogin,
         case when r.rolcanlogin then 'tensile_reader may log in' else 'tensile_reader may not log in' end,
         case when not r.rolcanlogin then 'As a superuser: alter role tensile_reader login;' end
    from pg_catalog.pg_roles as r where r.rolname = 'tensile_reader';

  return query
  select 'current schema', s.fine,
         coalesce('tensile_reader ' || case when s.fine then 'may' else 'may not' end || ' use schema ' || s.name,
                  'no schema is selected'),
         case when not s.fine then coalesce(format('grant usage on schema %I to tensile_reader;', s.name),
                                            'set search_path = public;') end
    from (select schema as name,
                 coalesce(has_schema_privilege('tensile_reader', schema, 'usage'), false) as fine) as s;

  select count(*) into alive from tensile.workers as w
   where w.stopped_at is null and w.heartbeat_at > now() - make_interval(secs => w.lease_s);
  return query
  select 'controllers', alive > 0, alive || ' alive',
         case when alive = 0 then 'Start one: tensile up, or tensile controller.' end;

  return query
  select 'socket directory', s.directory is not null, coalesce(s.directory, 'not set'),
         case when s.directory is null then
           'As a member of tensile_admin: select tensile_set_setting(''socket_directory'', ''"/run/tensile"'');' end
    from (select (select t.value #>> '{}' from tensile.settings as t where t.name = 'socket_directory') as directory)
      as s;

  answer := tensile.bridge('ping', '{}');
  return query
  select 'service', (answer -> 'ok')::boolean,
         case when (answer -> 'ok')::boolean then 'version ' || (answer #>> '{result,version}')
              else concat_ws(': ', answer #>> '{error,message}', nullif(answer #>> '{error,detail}', '')) end,
         nullif(answer #>> '{error,hint}', '');
end
$$;
comment on function tensile.checks(name) is 'implements tensile_check; the argument is the caller''s current schema';

create function public.tensile_check()
  returns table (item text, ok boolean, detail text, hint text)
  language sql volatile parallel unsafe rows 10
begin atomic
  select c.item, c.ok, c.detail, c.hint from tensile.checks(pg_catalog.current_schema()) as c;
end;
comment on function public.tensile_check() is
  'checks what trainings and predictions need: returns a row for each item, with a hint for each fault';

-- Privileges on the functions ----------------------------------------------------------------------------------

do $$
declare
  routine regprocedure;
begin
  for routine in
    select p.oid::regprocedure from pg_catalog.pg_proc as p
     where p.pronamespace = 'public'::regnamespace and p.proname like 'tensile\_%'
        or p.pronamespace = 'tensile'::regnamespace
           and p.proname in ('training_request', 'train', 'follow_job', 'prediction', 'prediction_part',
                             'predictions', 'row_form', 'row_bytes', 'row_json', 'key_text', 'check_row_size',
                             'numbers_of', 'evaluation', 'split_parts', 'checks', 'raise_no_job',
                             'raise_no_change', 'raise_no_model')
  loop
    execute format('revoke execute on routine %s from public', routine);
    execute format('grant execute on routine %s to tensile_user', routine);
  end loop;
end
$$;

-- Everybody may execute the functions below: each of them first calls tensile_require_role or tensile.call, which tell a
-- role which membership it lacks. tensile_predict_batch and tensile_version cannot do so. PL/pgSQL does not accept arrays
-- of anonymous records, and PostgreSQL parses the whole body of an SQL function, with the caller's right to use schema
-- tensile, before it runs the first statement.
do $$
declare
  routine regprocedure;
begin
  for routine in
    select p.oid::regprocedure from pg_catalog.pg_proc as p
     where p.pronamespace = 'public'::regnamespace and p.proname like 'tensile\_%'
           and p.proname not in ('tensile_predict_batch', 'tensile_version')
        or p.pronamespace = 'tensile'::regnamespace
           and p.proname in ('training_request', 'train', 'evaluation', 'split_parts', 'checks')
  loop
    execute format('grant execute on routine %s to public', routine);
  end loop;
end
$$;

grant execute on function public.tensile_version() to tensile_monitor, tensile_worker;
revoke execute on function tensile.relation_title(oid, text, text) from public;
grant execute on function tensile.relation_title(oid, text, text) to tensile_user, tensile_monitor, tensile_worker;
