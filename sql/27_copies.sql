-- Copies of a database: the owners of rows that came from another database.

-- In a copy of the database on another cluster, the oids of roles are meaningless, and their names are valid. Within
-- one cluster the oids are valid: a new role with the old name of a renamed role must not get the renamed role's rows.
-- So rows of this database keep their oids, and only the stored names are updated. Rows of another database are
-- assigned by oid if that database is in this cluster, and otherwise by name. Rows whose role does not exist here stay
-- without an owner.
create function tensile.role_here(role_oid oid, stored_name name, stored_installation uuid) returns oid
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select r.oid from pg_roles as r
   where case when exists (select from pg_control_system() as c, pg_database as d
                            where md5(c.system_identifier::text || '/' || d.oid::text)::uuid = stored_installation)
              then r.oid = role_oid else r.rolname = stored_name end
$$;
comment on function tensile.role_here(oid, name, uuid) is
  'finds the role of this cluster for an oid and a name that were stored in another database; null if there is none';

-- Rows that another session has locked are left to the next call, so that no user's lock keeps a worker from starting.
create function tensile.adopt_owners() returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  here constant uuid := tensile.installation();
  adopted bigint := 0;
  more bigint;
begin
  update tensile.models as m set owner_name = f.rolname
    from (select n.model_id, r.rolname from tensile.models as n join pg_roles as r on r.oid = n.owner_oid
           where n.installation = here and n.owner_name <> r.rolname for no key update of n skip locked) as f
   where m.model_id = f.model_id;
  update tensile.model_privileges as p set grantee_name = f.rolname
    from (select q.model_id, q.grantee_oid, q.privilege, r.rolname
            from tensile.model_privileges as q join pg_roles as r on r.oid = q.grantee_oid
           where q.installation = here and q.grantee_name <> r.rolname for no key update of q skip locked) as f
   where (p.model_id, p.grantee_oid, p.privilege) = (f.model_id, f.grantee_oid, f.privilege);
  update tensile.jobs as j set owner_name = f.rolname
    from (select k.job_id, r.rolname from tensile.jobs as k join pg_roles as r on r.oid = k.owner_oid
           where k.installation = here and k.owner_name <> r.rolname for no key update of k skip locked) as f
   where j.job_id = f.job_id;

  update tensile.model_privileges as p
     set owner_oid = f.owner, grantee_oid = f.grantee, installation = here
    from (select q.model_id, q.grantee_oid, q.privilege,
                 tensile.role_here(m.owner_oid, m.owner_name, m.installation) as owner,
                 case when q.grantee_oid = 0 then 0
                      else tensile.role_here(q.grantee_oid, q.grantee_name, q.installation) end as grantee
            from tensile.model_privileges as q join tensile.models as m using (model_id)
           where q.installation <> here
             and not exists (select from tensile.model_privileges as twin  -- of a role that has the old name of a renamed role
                              where twin.model_id = q.model_id and twin.privilege = q.privilege
                                and twin.grantee_name = q.grantee_name and twin.grantee_oid < q.grantee_oid)
             for no key update of q skip locked) as f
   where (p.model_id, p.grantee_oid, p.privilege) = (f.model_id, f.grantee_oid, f.privilege)
     and f.owner is not null and f.grantee is not null;
  get diagnostics adopted = row_count;
  update tensile.models as m set owner_oid = f.owner, installation = here
    from (select n.model_id, tensile.role_here(n.owner_oid, n.owner_name, n.installation) as owner
            from tensile.models as n where n.installation <> here for no key update skip locked) as f
   where m.model_id = f.model_id and f.owner is not null;
  get diagnostics more = row_count;
  adopted := adopted + more;
  update tensile.jobs as j set owner_oid = f.owner, installation = here
    from (select k.job_id, tensile.role_here(k.owner_oid, k.owner_name, k.installation) as owner
            from tensile.jobs as k
           where k.installation <> here and k.state in ('succeeded', 'failed', 'cancelled')
             and (not k.spec ? 'predict' or tensile.adopt_prediction_table(k))
             for no key update skip locked) as f
   where j.job_id = f.job_id and f.owner is not null;
  get diagnostics more = row_count;
  adopted := adopted + more;
  update tensile.network_privileges as p set grantee_oid = f.grantee, installation = here
    from (select q.network_id, q.grantee_oid, q.installation,
                 case when q.grantee_oid = 0 then 0
                      else tensile.role_here(q.grantee_oid, q.grantee_name, q.installation) end as grantee
            from tensile.network_privileges as q
           where q.installation <> here for no key update skip locked) as f
   where (p.network_id, p.grantee_oid, p.installation) = (f.network_id, f.grantee_oid, f.installation)
     and f.grantee is not null
     and not exists (select from tensile.network_privileges as twin
                      where (twin.network_id, twin.grantee_oid, twin.installation) = (f.network_id, f.grantee, here));
  get diagnostics more = row_count;
  return adopted + more;
end
$$;
comment on function tensile.adopt_owners() is
  'assigns the rows that came with a copy of another database to the roles of the same names here, and updates the '
  'stored names of roles; returns how many rows were assigned. Every worker calls it when it starts. Queued jobs are '
  'left out: see tensile.adopt_jobs()';

create function tensile.adopt_jobs() returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  adopted bigint;
begin
  update tensile.jobs as j set owner_oid = f.owner, installation = tensile.installation()
    from (select k.job_id, tensile.role_here(k.owner_oid, k.owner_name, k.installation) as owner
            from tensile.jobs as k
           where k.installation <> (select tensile.installation()) and k.state = 'queued'
             and (not k.spec ? 'predict' or tensile.adopt_prediction_table(k))) as f
   where j.job_id = f.job_id and f.owner is not null;
  get diagnostics adopted = row_count;
  return adopted;
end
$$;
comment on function tensile.adopt_jobs() is
  'assigns the queued jobs of another installation to this database, so that workers run them here; for an '
  'administrator who has moved a database, for example by pg_upgrade, and knows that the old database does not run its '
  'queue; returns how many jobs were assigned';

revoke execute on function tensile.role_here(oid, name, uuid), tensile.adopt_owners(), tensile.adopt_jobs() from public;
