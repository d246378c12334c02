-- Registered networks: which role may train from which, and their removal. `tensile models import` writes them.
--
-- Users see names and sizes of the networks that they may train from, and neither tokenizers nor weights: only workers
-- read these. Administrators insert rows, and remove them with functions, as with all other tables.

alter table tensile.networks enable row level security;
alter table tensile.network_chunks enable row level security;
alter table tensile.network_privileges enable row level security;

create function tensile.may_use_network(role_oid oid, network bigint) returns boolean
  language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select pg_has_role(role_oid, 'tensile_admin', 'usage')
         or exists (select from tensile.network_privileges as p
                     where p.network_id = may_use_network.network and p.installation = tensile.installation()
                       and (p.grantee_oid = 0 or pg_has_role(role_oid, p.grantee_oid, 'usage')))
$$;
comment on function tensile.may_use_network(oid, bigint) is
  'returns whether a role may train from a registered network: an administrator, or a role with the privilege';
revoke execute on function tensile.may_use_network(oid, bigint) from public;
grant execute on function tensile.may_use_network(oid, bigint) to tensile_worker;

grant select (network_id, name, digest, family, config, parameters, weights_bytes, imported_by, imported_at)
  on tensile.networks to tensile_user, tensile_monitor;
grant select on tensile.network_privileges to tensile_user, tensile_monitor;
grant insert (name, digest, family, config, tokenizer, parameters, weights_bytes) on tensile.networks to tensile_admin;
grant insert (network_id, chunk_no, chunk) on tensile.network_chunks to tensile_admin;

create policy network_privileges_of_grantee on tensile.network_privileges for select to tensile_user
  using (installation = (select tensile.installation())
         and (grantee_oid = 0 or pg_has_role(grantee_oid, 'usage')));
create policy networks_granted on tensile.networks for select to tensile_user
  using (network_id in (select p.network_id from tensile.network_privileges as p));
create policy networks_monitored on tensile.networks for select to tensile_monitor using (true);
create policy network_privileges_monitored on tensile.network_privileges for select to tensile_monitor using (true);
create policy networks_administered on tensile.networks for insert to tensile_admin with check (true);
create policy network_chunks_administered on tensile.network_chunks for insert to tensile_admin with check (true);
create policy networks_worked on tensile.networks for select to tensile_worker using (true);
create policy network_chunks_worked on tensile.network_chunks for select to tensile_worker using (true);
create policy network_privileges_worked on tensile.network_privileges for select to tensile_worker using (true);

create function tensile.network_users(network_digest text) returns bigint
  language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select count(*)
    from tensile.model_versions as v join tensile.models as m using (model_id)
   where m.dropped_at is null and v.architecture ->> 'type' = 'pretrained'
     and v.architecture ->> 'digest' = network_digest
$$;
comment on function tensile.network_users(text) is
  'counts the versions of models that need the network of this digest to predict';
revoke execute on function tensile.network_users(text) from public;
grant execute on function tensile.network_users(text) to tensile_admin;

create function tensile.find_network(network text) returns bigint
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  wanted bigint;
begin
  select n.network_id into wanted from tensile.networks as n where n.name = network;
  if not found then
    raise exception 'there is no registered network "%"', left(network, 200)
      using errcode = 'undefined_object',
            hint = 'See the networks: select * from tensile.network_list; and register one with tensile models import.';
  end if;
  return wanted;
end
$$;
comment on function tensile.find_network(text) is 'returns the number of a registered network, or raises an error';
revoke execute on function tensile.find_network(text) from public;
grant execute on function tensile.find_network(text) to tensile_admin;

create function tensile.set_network_privilege(network text, grantee name, wanted boolean) returns void
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '2s'
as $$
declare
  granted constant bigint := tensile.find_network(network);
  role_oid oid;
begin
  if grantee is null then
    raise exception 'no role is named for network "%"', network
      using errcode = 'null_value_not_allowed', hint = 'Name a role, or public for all roles.';
  end if;
  select r.oid into role_oid from pg_roles as r where r.rolname = grantee;
  if not found and grantee <> 'public'
     and (wanted or not exists (select from tensile.network_privileges as p
                                 where p.network_id = granted and p.grantee_name = grantee)) then
    raise exception 'there is no role "%"', grantee
      using errcode = 'undefined_object', hint = 'Name a role, or public for all roles.';
  end if;
  if wanted then
    insert into tensile.network_privileges (network_id, grantee_oid, grantee_name, granted_by)
    values (granted, coalesce(role_oid, 0), grantee, session_user) on conflict do nothing;
  else
    delete from tensile.network_privileges as p
     where p.network_id = granted
       and (p.grantee_oid = role_oid or p.grantee_oid = 0 and grantee = 'public'
            or p.grantee_name = grantee and not exists (select from pg_roles as r where r.oid = p.grantee_oid));
  end if;
end
$$;
comment on function tensile.set_network_privilege(text, name, boolean) is
  'implements tensile_grant_network and tensile_revoke_network';
revoke execute on function tensile.set_network_privilege(text, name, boolean) from public;
grant execute on function tensile.set_network_privilege(text, name, boolean) to tensile_admin;

create function tensile.remove_network(network text, force boolean) returns text
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '2s'
as $$
declare
  removed constant bigint := tensile.find_network(network);
  own_digest text;
  users bigint;
  names text;
begin
  select n.digest into own_digest from tensile.networks as n where n.network_id = removed for update;
  users := tensile.network_users(own_digest);
  if users > 0 and not coalesce(force, false)
     and not exists (select from tensile.networks as n where n.digest = own_digest and n.network_id <> removed) then
    select string_agg(distinct format('"%s"', m.name), ', ') into names
      from tensile.model_versions as v join tensile.models as m using (model_id)
     where m.dropped_at is null and v.architecture ->> 'digest' = own_digest;
    raise exception '% of models need network "%"', case users when 1 then '1 version' else users || ' versions' end,
                    network
      using errcode = 'dependent_objects_still_exist',
            detail = format('They hold only what was trained, and predict with its weights: versions of %s.',
                            left(names, 500)),
            hint = format('Drop the models, or remove it all the same: select tensile_drop_network(%L, force => true); '
                          'they predict again once the same files are registered under any name.', network);
  end if;
  delete from tensile.networks as n where n.network_id = removed;
  return own_digest;
end
$$;
comment on function tensile.remove_network(text, boolean) is 'implements tensile_drop_network';
revoke execute on function tensile.remove_network(text, boolean) from public;
grant execute on function tensile.remove_network(text, boolean) to tensile_admin;

create function public.tensile_grant_network(network text, grantee name) returns void
  language plpgsql volatile parallel unsafe
as $$
begin
  perform public.tensile_require_role('tensile_admin');
  perform tensile.set_network_privilege(network, grantee, true);
end
$$;
comment on function public.tensile_grant_network(text, name) is
  'allows a role (public: all roles) to train from a registered network; for administrators';

create function public.tensile_revoke_network(network text, grantee name) returns void
  language plpgsql volatile parallel unsafe
as $$
begin
  perform public.tensile_require_role('tensile_admin');
  perform tensile.set_network_privilege(network, grantee, false);
end
$$;
comment on function public.tensile_revoke_network(text, name) is
  'revokes what tensile_grant_network has granted; models that were trained meanwhile go on predicting';

create function public.tensile_drop_network(network text, force boolean default false) returns void
  language plpgsql volatile parallel unsafe
as $$
begin
  perform public.tensile_require_role('tensile_admin');
  perform tensile.remove_network(network, force);
end
$$;
comment on function public.tensile_drop_network(text, boolean) is
  'removes a registered network with its weights; refused while versions of models need it, unless force is true; for '
  'administrators';

create view tensile.network_list with (security_invoker) as
select n.name as network, n.family, n.parameters, n.weights_bytes,
       (n.config ->> 'width')::integer as width, (n.config ->> 'layers')::integer as layers,
       (n.config ->> 'positions')::integer as positions, (n.config ->> 'vocabulary')::integer as vocabulary,
       coalesce((select array_agg(coalesce(r.rolname, p.grantee_name) order by p.grantee_name)
                   from tensile.network_privileges as p left join pg_catalog.pg_roles as r on r.oid = p.grantee_oid
                  where p.network_id = n.network_id and p.installation = (select tensile.installation())),
                '{}')::name[] as grantees,
       n.digest, n.imported_by, n.imported_at
  from tensile.networks as n;
comment on view tensile.network_list is
  'registered networks that the current role may train from; administrators and monitors see all';
comment on column tensile.network_list.network is 'name by which an architecture refers to the network';
comment on column tensile.network_list.family is 'kind of network: bert, distilbert, roberta or gpt2';
comment on column tensile.network_list.parameters is 'count of its weights';
comment on column tensile.network_list.weights_bytes is 'size of its weights';
comment on column tensile.network_list.width is 'length of the vector that it makes of each token';
comment on column tensile.network_list.layers is 'count of its layers of attention';
comment on column tensile.network_list.positions is 'most tokens of a text that it reads';
comment on column tensile.network_list.vocabulary is 'count of its tokens';
comment on column tensile.network_list.grantees is
  'roles that may train from it, public for all roles; a user sees only the own privileges';
comment on column tensile.network_list.digest is 'SHA-256 of configuration, tokenizer and weights';
comment on column tensile.network_list.imported_by is 'administrator who registered it';
comment on column tensile.network_list.imported_at is 'time of the registration';

grant select on tensile.network_list to tensile_user, tensile_monitor, tensile_worker;
