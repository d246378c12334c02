-- Models: reserved names, changes and grants, and the deletion of dropped models.

-- Enqueuing a training reserves the model's name, so that publishing neither inserts into models nor waits for a name
-- that another session has not committed. Row-level security hides other users' models, so only a security definer
-- function can tell whether a name is free. The key-share lock waits for the deletion of a reservation, but not for a
-- publication.
create function tensile.reserve_model() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '2s'
as $$
declare
  model record;
begin
  for attempt in 1..3 loop
    select m.owner_oid, m.installation into model
      from tensile.models as m where m.name = new.model_name and m.dropped_at is null for key share;
    exit when found;
    begin
      insert into tensile.models (name, owner_oid, owner_name, installation)
      values (new.model_name, new.owner_oid, new.owner_name, new.installation)
      on conflict (name) where dropped_at is null do nothing;
    exception when lock_not_available then
      raise exception 'model "%" is being created by a transaction that has not ended', new.model_name
        using errcode = 'lock_not_available', hint = 'Try again when that transaction has ended, or choose another name.';
    end;
  end loop;
  if model.installation is distinct from new.installation then
    raise exception 'model "%" belongs to a role of another database, of which this one is a copy', new.model_name
      using errcode = 'insufficient_privilege',
            hint = 'A controller that starts here assigns the models to the roles of the same names. An administrator '
                   'can do the same: select tensile.adopt_owners();';
  elsif model.owner_oid is distinct from new.owner_oid then
    raise exception 'model "%" belongs to another role', new.model_name
      using errcode = 'insufficient_privilege',
            hint = 'Model names are unique in the database: choose another name.';
  end if;
  return new;
end
$$;
comment on function tensile.reserve_model() is
  'trigger: reserves the model''s name for the job''s owner, and refuses a job for another owner''s model';

create trigger jobs_reserve_model before insert on tensile.jobs
  -- A restored copy inserts jobs that have ended, which need no name. A prediction needs a model that exists.
  for each row when (new.state = 'queued' and not new.spec ? 'predict')
  execute function tensile.reserve_model();

create function tensile.is_reservation(model tensile.models) returns boolean
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select model.definition is null and model.last_spec is null and model.dropped_at is null
         and not exists (select from tensile.model_versions as v where v.model_id = model.model_id)
$$;
comment on function tensile.is_reservation(tensile.models) is
  'true if the model is only a name, reserved by a training that has not published a version yet';

-- A queued or active training publishes to the model of its name. So such a model can be neither renamed nor dropped,
-- and a new name must be free. The lock waits for a training that another session is enqueuing.
create function tensile.check_model_change() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  busy bigint;
begin
  if tg_op = 'UPDATE' and (new.name <> old.name or new.dropped_at is not null and old.dropped_at is null) then
    perform from tensile.models as m where m.model_id = old.model_id for update;
    select j.job_id into busy from tensile.jobs as j
     where j.model_name = old.name and j.owner_oid = old.owner_oid and j.installation = old.installation
       and j.state in ('queued', 'starting', 'running') and not j.spec ? 'predict'
     order by j.job_id limit 1;  -- a search before its trials
    if found then
      raise exception 'model "%" is being trained by job %', old.name, busy
        using errcode = 'object_in_use',
              detail = 'The training publishes its version to the model of this name.',
              hint = format('Wait until it has ended: select tensile_wait(%s); or cancel it: select tensile_cancel(%s);',
                            busy, busy);
    end if;
  end if;
  if new.dropped_at is null and exists (
       select from tensile.models as m
        where m.name = new.name and m.dropped_at is null
          and (m.owner_oid, m.installation) <> (new.owner_oid, new.installation)) then
    raise exception 'model "%" belongs to another role', new.name
      using errcode = 'insufficient_privilege',
            hint = 'Model names are unique in the database: choose another name.';
  end if;
  return new;
end
$$;
comment on function tensile.check_model_change() is
  'trigger: refuses the name of another owner''s model, and refuses to rename or drop a model with a queued or active '
  'training';

create trigger models_may_change before insert or update of name, dropped_at on tensile.models
  for each row when (new.installation = tensile.installation())  -- not for the rows of a restored copy
  execute function tensile.check_model_change();

-- The policies of model_privileges read the column owner_oid. If they read models instead, whose policies read
-- model_privileges, the policies would be recursive.
create function tensile.complete_privilege() returns trigger
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'INSERT' then
    new.owner_oid := (select m.owner_oid from tensile.models as m
                       where m.model_id = new.model_id and m.installation = new.installation and m.dropped_at is null);
  elsif new.revoked_at is null and old.revoked_at is not null then
    new.granted_at := now();
  end if;
  return new;
end
$$;
comment on function tensile.complete_privilege() is
  'trigger: writes the owner of the model into a privilege on the model';

create trigger model_privileges_have_an_owner before insert or update of revoked_at on tensile.model_privileges
  for each row when (new.installation = tensile.installation())  -- not for the rows of a restored copy
  execute function tensile.complete_privilege();

create function tensile.delete_dropped(most integer default 1000) returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '1s'
as $$
declare
  deleted bigint;
  rows_deleted bigint;
begin
  delete from tensile.artifacts as a using (
    select c.artifact_id
      from tensile.models as m
      join tensile.model_versions as v on v.model_id = m.model_id
      join tensile.artifacts as c on c.version_id = v.version_id
     where m.dropped_at is not null
     limit most) as chunk
   where a.artifact_id = chunk.artifact_id;
  get diagnostics deleted = row_count;

  -- Dependent rows are deleted first, without the rows that their owner has locked: a cascade would wait for those.
  delete from tensile.model_versions as v using (
    select o.version_id
      from tensile.models as m
      join tensile.model_versions as o on o.model_id = m.model_id
     where m.dropped_at is not null
       and not exists (select from tensile.artifacts as c where c.version_id = o.version_id)
     limit greatest(most - deleted, 0) for update of o skip locked) as dead
   where v.version_id = dead.version_id;
  get diagnostics rows_deleted = row_count;
  deleted := deleted + rows_deleted;

  delete from tensile.model_privileges as p using (
    select q.model_id, q.grantee_oid, q.privilege
      from tensile.model_privileges as q join tensile.models as m on m.model_id = q.model_id
     where q.revoked_at is not null or m.dropped_at is not null
     limit greatest(most - deleted, 0) for update of q skip locked) as dead
   where (p.model_id, p.grantee_oid, p.privilege) = (dead.model_id, dead.grantee_oid, dead.privilege);
  get diagnostics rows_deleted = row_count;
  deleted := deleted + rows_deleted;

  delete from tensile.deployments as h using (
    select o.deployment_id
      from tensile.models as m join tensile.deployments as o on o.model_id = m.model_id
     where m.dropped_at is not null
     limit greatest(most - deleted, 0)) as dead
   where h.deployment_id = dead.deployment_id;
  get diagnostics rows_deleted = row_count;
  deleted := deleted + rows_deleted;

  -- Dropped models, and reservations whose training ended while another session had locked them, or never committed.
  delete from tensile.models as m using (
    select d.model_id from tensile.models as d
     where (d.dropped_at is not null
            or tensile.is_reservation(d)
               and not exists (select from tensile.jobs as j
                                where j.model_name = d.name and j.state in ('queued', 'starting', 'running')))
       and not exists (select from tensile.model_versions as v where v.model_id = d.model_id)
       and not exists (select from tensile.model_privileges as p where p.model_id = d.model_id)
       and not exists (select from tensile.deployments as h where h.model_id = d.model_id)
     limit greatest(most - deleted, 0) for update skip locked) as dead
   where m.model_id = dead.model_id;
  get diagnostics rows_deleted = row_count;
  return deleted + rows_deleted;
end
$$;
comment on function tensile.delete_dropped(integer) is
  'deletes at most this many rows of dropped models, revoked privileges and reserved names that no training needs any '
  'more; returns how many, so call it again until it returns 0';

revoke execute on function tensile.reserve_model(), tensile.is_reservation(tensile.models), tensile.check_model_change(),
  tensile.complete_privilege(), tensile.delete_dropped(integer) from public;
