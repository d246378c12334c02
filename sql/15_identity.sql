-- The identity of the catalog (version and source), of the database, and of the current role.

create function tensile.catalog_version() returns text
  language sql immutable parallel safe
  return '@VERSION@';
comment on function tensile.catalog_version() is
  'version of this catalog; a controller of another version refuses to work on it';

create function tensile.catalog_digest() returns text
  language sql immutable parallel safe
  return '@DIGEST@';
comment on function tensile.catalog_digest() is
  'digest of the source that this catalog was installed from; it tells apart sources of the same version';

-- The id of `installation()` is computed on each call and not stored. So a copy of the database (by dump, template or
-- pg_upgrade) is automatically another installation. Only a copy of the whole data directory has the same id, as a
-- promoted standby needs. Policies call the function in every query of a user. A session keeps the plans of PL/pgSQL,
-- while PostgreSQL plans a function of SQL that it cannot inline anew in each query, which takes 80 us.
create function tensile.installation() returns uuid
  language plpgsql stable parallel safe
  set search_path = pg_catalog, pg_temp
as $$
begin
  return (select md5(c.system_identifier::text || '/' || d.oid::text)::uuid
            from pg_control_system() as c, pg_database as d
           where d.datname = current_database());
end
$$;
comment on function tensile.installation() is
  'id of this database, made from the cluster''s system identifier and the database''s oid';

create function tensile.current_role_oid() returns oid
  language sql stable parallel safe
  return pg_catalog.quote_ident(current_user)::regrole::oid;
comment on function tensile.current_role_oid() is 'oid of current_user, which becomes the owner of new rows';

revoke execute on function tensile.catalog_version(), tensile.catalog_digest(), tensile.installation(),
  tensile.current_role_oid() from public;
