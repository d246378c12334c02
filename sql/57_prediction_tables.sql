-- Tables of predictions: tensile_predict_into has a worker fill a table of the role tensile_data, which the caller reads
-- through a view of the caller's own. The worker never writes to a table of a user: its triggers, rules, defaults and
-- constraints would run as the worker.
--
-- A table is named predictions_JOB_INSTALLATION, because a dump contains such tables and their views, and a restored copy
-- is another installation, whose jobs may have the same numbers.

create function tensile.may_predict(owner oid, installation uuid, version bigint) returns text
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select m.name
    from tensile.model_versions as v join tensile.models as m using (model_id)
   where v.version_id = may_predict.version and m.dropped_at is null and m.installation = may_predict.installation
     and (m.owner_oid = may_predict.owner
          or exists (select from tensile.model_privileges as p
                      where p.model_id = m.model_id and p.revoked_at is null and p.installation = m.installation
                        and (p.grantee_oid = 0 or pg_has_role(may_predict.owner, p.grantee_oid, 'usage'))))
$$;
comment on function tensile.may_predict(oid, uuid, bigint) is
  'returns the name of the version''s model, or null if the role may not predict with the version';

-- Enqueuing a training reserves a model of the job's owner; a prediction needs a model with which its owner may predict.
create function tensile.check_prediction() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  version constant jsonb := new.spec #> '{predict,version_id}';
begin
  if jsonb_typeof(version) is distinct from 'number' or version::text !~ '^[0-9]{1,18}$'
     or tensile.may_predict(new.owner_oid, new.installation, version::text::bigint) is distinct from new.model_name then
    raise exception 'role "%" may not predict with version_id % of model "%"', new.owner_name, coalesce(version, 'null'), new.model_name
      using errcode = 'insufficient_privilege',
            hint = 'The model''s owner can allow it: select tensile_grant_model(''model'', ''role'');';
  end if;
  return new;
end
$$;
comment on function tensile.check_prediction() is
  'trigger: refuses a job of tensile_predict_into whose owner may not predict with its version';

create trigger jobs_may_predict before insert on tensile.jobs
  for each row when (new.state = 'queued' and new.spec ? 'predict')
  execute function tensile.check_prediction();

create function tensile.prediction_table(job tensile.jobs) returns name
  language sql immutable parallel safe
  return ('predictions_' || job.job_id || '_' || left(job.installation::text, 8))::name;
comment on function tensile.prediction_table(tensile.jobs) is
  'returns the name of the table in schema tensile_data that a job of tensile_predict_into fills';

-- As with snapshots, the columns have only base types of pg_catalog, so no function of a user runs here.
create function tensile.make_prediction_table(job bigint) returns text
  language plpgsql volatile security definer parallel unsafe
  set search_path = pg_catalog, pg_temp
  set default_tablespace = ''
  set default_table_access_method = heap
as $$
declare
  mine tensile.jobs;
  owner name;
  keys text[];
  definitions text;
  storable boolean;
  target text;
begin
  select j.* into mine
    from tensile.jobs as j
   where j.job_id = job and j.enqueued_xact = pg_current_xact_id() and j.state = 'queued' and j.spec ? 'predict';
  if not found then
    raise exception 'this transaction has enqueued no prediction %', job
      using errcode = 'object_not_in_prerequisite_state', hint = 'tensile_predict_into(...) enqueues one.';
  end if;
  select r.rolname into owner from pg_roles as r where r.oid = mine.owner_oid;
  keys := array(select k.name from jsonb_array_elements_text(mine.spec #> '{predict,keys}') with ordinality as k (name, place)
                 order by k.place);
  select string_agg(format('key_%s %s, ', k.place, c.stored), '' order by k.place),
         bool_and(c.stored is not null) and count(*) <= 100
    into definitions, storable
    from unnest(keys) with ordinality as k (name, place)
    left join tensile.snapshot_columns(mine.relation_oid, null, null, null, keys) as c on c.name = k.name;
  if not storable then
    raise exception 'the keys of job % cannot be stored', job
      using errcode = 'invalid_parameter_value', hint = 'tensile_predict_into(...) says which columns can be keys.';
  end if;
  target := format('tensile_data.%I', tensile.prediction_table(mine));
  execute format('create table %s (%s value double precision, label text, probabilities jsonb, '
                 'targets jsonb)', target, definitions);
  for number in 1 .. coalesce(cardinality(keys), 0) loop
    execute format('comment on column %s.key_%s is %L', target, number, keys[number]);
  end loop;
  execute format('grant select on %s to %I', target, owner);
  execute format('grant insert on %s to tensile_worker', target);
  return target;
end
$$;
comment on function tensile.make_prediction_table(bigint) is
  'creates the empty table for a prediction that this transaction has enqueued, which the job''s owner may read and the '
  'worker fill; returns its name. Its columns are key_1, key_2, ..., value, label, probabilities and targets';

-- A view on the table may have views of other roles on it, and PostgreSQL lets a role create a view on a table that the
-- role may not read. So "cascade" drops what users made from our table.
create function tensile.drop_prediction_table(table_name name) returns boolean
  language plpgsql volatile security definer parallel unsafe
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '200ms'  -- the session of a trainer that was killed may take some milliseconds to end
  set client_min_messages = warning  -- "cascade" names what it drops
as $$
declare
  number bigint;
  -- One statement of a worker may end many jobs. It waits for at most one table that another session reads.
  wait constant text := case current_setting('tensile.waited_for_predictions', true) when 'on' then 'nowait' else '' end;
  ended tensile.job_state;
begin
  number := substring(table_name from '^predictions_([0-9]{1,18})_[0-9a-f]{8}$')::bigint;
  if number is null then
    return false;
  end if;
  execute format('lock table tensile_data.%I in access exclusive mode %s', table_name, wait);
  select j.state into ended
    from tensile.jobs as j where j.job_id = number and tensile.prediction_table(j) = table_name;
  -- The table of a job that failed or was cancelled goes with its view. Any other table stays while a view shows it, and
  -- while its job may still fill it.
  if ended in ('queued', 'starting', 'running')
     or ended is distinct from 'failed' and ended is distinct from 'cancelled'
        and exists (select from pg_depend as d
                     where d.refclassid = 'pg_class'::regclass and d.classid <> 'pg_type'::regclass
                       and d.refobjid = format('tensile_data.%I', table_name)::regclass and d.deptype = 'n') then
    return false;
  end if;
  execute format('drop table tensile_data.%I cascade', table_name);
  return true;
exception
  when lock_not_available then
    perform set_config('tensile.waited_for_predictions', 'on', true);  -- until the transaction ends
    return false;
  when undefined_table or object_in_use then
    return false;
end
$$;
comment on function tensile.drop_prediction_table(name) is
  'drops a table of predictions whose job failed or was cancelled, with its view, or that no view shows any more; '
  'returns false if the table stays or is locked';

-- The name of a table has the installation of its job, which adopt_owners() and adopt_jobs() are about to change.
create function tensile.adopt_prediction_table(job tensile.jobs) returns boolean
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $$
declare
  old_name constant name := tensile.prediction_table(job);
begin
  if job.spec ? 'predict' and to_regclass(format('tensile_data.%I', old_name)) is not null then
    execute format('lock table tensile_data.%I in access exclusive mode nowait', old_name);
    job.installation := tensile.installation();
    execute format('alter table tensile_data.%I rename to %I', old_name, tensile.prediction_table(job));
  end if;
  return true;
exception when lock_not_available or duplicate_table then
  return false;
end
$$;
comment on function tensile.adopt_prediction_table(tensile.jobs) is
  'renames the table of predictions of a job that came with a copy of another database, before the job is assigned to '
  'this one; returns false if another session reads the table, so that the next call assigns the job';

-- The tables of other installations came with a dump. Their views may not be restored yet, so only an administrator who
-- asks for it drops those.
create function tensile.drop_prediction_tables(most integer, foreign_ones boolean default false) returns bigint
  language sql volatile security definer parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
  select count(*) filter (where tensile.drop_prediction_table(t.relname))
    from (select c.relname
            from pg_class as c
           where c.relnamespace = 'tensile_data'::regnamespace and c.relkind = 'r'
             and c.relname ~ '^predictions_[0-9]+_[0-9a-f]{8}$'
             and (foreign_ones or right(c.relname, 8) = left(tensile.installation()::text, 8))
             and (not exists (select from pg_depend as d
                               where d.refclassid = 'pg_class'::regclass and d.refobjid = c.oid and d.deptype = 'n'
                                 and d.classid <> 'pg_type'::regclass)
                  or exists (select from tensile.jobs as j
                              where j.job_id = split_part(c.relname, '_', 2)::bigint
                                and tensile.prediction_table(j) = c.relname and j.state in ('failed', 'cancelled')))
             and not exists (select from tensile.jobs as j
                              where j.job_id = split_part(c.relname, '_', 2)::bigint
                                and j.state in ('queued', 'starting', 'running'))
           order by random()  -- so that tables that stay locked do not always come first
           limit most) as t
$$;
comment on function tensile.drop_prediction_tables(integer, boolean) is
  'drops at most this many tables of predictions that no view shows or whose job failed or was cancelled; returns how '
  'many. The tables of a restored dump are dropped only if foreign_ones is true';

-- Without a controller the view of a cancelled job goes at once, so that its name is free for the next call.
create function tensile.drop_failed_predictions() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform tensile.drop_prediction_table(tensile.prediction_table(new));
  return null;
end
$$;
comment on function tensile.drop_failed_predictions() is
  'trigger: drops the table and the view of a prediction that failed or was cancelled; if another session reads them, a '
  'controller drops them later';

create trigger jobs_drop_predictions after update on tensile.jobs
  for each row when (new.state in ('failed', 'cancelled') and old.state <> new.state and new.spec ? 'predict')
  execute function tensile.drop_failed_predictions();

alter function tensile.make_prediction_table(bigint) owner to tensile_data;
alter function tensile.drop_prediction_table(name) owner to tensile_data;
alter function tensile.drop_prediction_tables(integer, boolean) owner to tensile_data;
alter function tensile.drop_failed_predictions() owner to tensile_data;

revoke execute on function tensile.may_predict(oid, uuid, bigint), tensile.check_prediction(),
  tensile.prediction_table(tensile.jobs), tensile.make_prediction_table(bigint), tensile.drop_prediction_table(name),
  tensile.drop_prediction_tables(integer, boolean), tensile.drop_failed_predictions(),
  tensile.adopt_prediction_table(tensile.jobs) from public;
grant usage on schema tensile_data to tensile_worker;
grant execute on function tensile.installation() to tensile_data;
grant execute on function tensile.prediction_table(tensile.jobs) to tensile_data, tensile_worker;
grant execute on function tensile.may_predict(oid, uuid, bigint) to tensile_worker;
grant execute on function tensile.make_prediction_table(bigint) to tensile_user;
grant execute on function tensile.drop_prediction_tables(integer, boolean) to tensile_worker, tensile_admin;
