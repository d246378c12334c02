-- Which version and source this catalog is of, who this database is, and who asks.

create function tensile.catalog_version() returns text
  language sql immutable parallel safe
  return '@VERSION@';
comment on function tensile.catalog_version() is
  'version of this catalog; a controller of another version refuses to work on it';

create function tensile.catalog_digest() returns text
  language sql immutable parallel safe
  return '@DIGEST@';
comment on function tensile.catalog_digest() is
  'digest of the source that made this catalog; between two releases the version alone does not tell';

-- Derived on every call and stored nowhere: a copy of the database, by dump, template or upgrade, is another
-- installation without anybody having to tell it so. Only a copy of the whole data directory is taken for the
-- same one, which is what a promoted standby needs.
create function tensile.installation() returns uuid
  language sql stable parallel safe
  return (select pg_catalog.md5(c.system_identifier::text || '/' || d.oid::text)::uuid
            from pg_catalog.pg_control_system() as c, pg_catalog.pg_database as d
           where d.datname = pg_catalog.current_database());
comment on function tensile.installation() is
  'who this database is: from the cluster''s system identifier and the database''s oid';

create function tensile.current_role_oid() returns oid
  language sql stable parallel safe
  return pg_catalog.quote_ident(current_user)::regrole::oid;
comment on function tensile.current_role_oid() is 'oid of current_user: the owner of what is written now';

revoke execute on function tensile.catalog_version(), tensile.catalog_digest(), tensile.installation(),
  tensile.current_role_oid() from public;
