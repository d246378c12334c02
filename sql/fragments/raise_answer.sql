if not (answer -> 'ok')::boolean then
    -- PostgreSQL would show an empty DETAIL or HINT.
    if answer #>> '{error,detail}' <> '' and answer #>> '{error,hint}' <> '' then
      raise exception using errcode = answer #>> '{error,sqlstate}', message = answer #>> '{error,message}',
        detail = answer #>> '{error,detail}', hint = answer #>> '{error,hint}';
    elsif answer #>> '{error,detail}' <> '' then
      raise exception using errcode = answer #>> '{error,sqlstate}', message = answer #>> '{error,message}',
        detail = answer #>> '{error,detail}';
    elsif answer #>> '{error,hint}' <> '' then
      raise exception using errcode = answer #>> '{error,sqlstate}', message = answer #>> '{error,message}',
        hint = answer #>> '{error,hint}';
    end if;
    raise exception using errcode = answer #>> '{error,sqlstate}', message = answer #>> '{error,message}';
  end if;
