if not pg_catalog.pg_has_role('tensile_user', 'usage') then
    raise exception 'role "%" is not a member of tensile_user', current_user
      using errcode = 'insufficient_privilege',
            hint = pg_catalog.format('Ask an administrator for: grant tensile_user to %I;', current_user);
  end if;
