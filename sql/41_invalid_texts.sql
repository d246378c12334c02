-- Texts that are not valid UTF-8, which only a database in SQL_ASCII has: PL/Python refuses them with PostgreSQL's error
-- 22021, which names no column. These functions say where such a text is. Names and texts are shown with escapes.

create function tensile.invalid_byte(value text) returns text
  language plpgsql immutable strict parallel safe
  set search_path = pg_catalog, pg_temp
as $$
declare
  message text;
begin
  if value !~ '[^\x01-\x7f]' then
    return null;
  end if;
  perform convert_from(convert_to(value, 'SQL_ASCII'), 'UTF8');
  return null;
exception when character_not_in_repertoire then
  get stacked diagnostics message = message_text;
  return substring(message from '0x[0-9a-f]{2}');
end
$$;
comment on function tensile.invalid_byte(text) is
  'returns the first byte at which a text of a database in SQL_ASCII is not valid UTF-8, as "0xe9"; null for a valid text';

create function tensile.shown_text(value text) returns text
  language plpgsql immutable strict parallel safe
  set search_path = pg_catalog, pg_temp
as $$
begin
  return case when tensile.invalid_byte(value) is null then value
              else encode(convert_to(value, 'SQL_ASCII'), 'escape') end;
end
$$;
comment on function tensile.shown_text(text) is
  'returns a text, with its bytes beyond ASCII in octal ("caf\351") if it is not valid UTF-8';

-- A text of an argument, or of a row to predict. Both come as JSON, in which every name and text is as it was given.
create function tensile.text_fault(request jsonb, rows jsonb[]) returns jsonb
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  place record;
begin
  select part.subject, part.of_row, tensile.invalid_byte(part.content) as byte into place
    from (select format('argument "%s"', tensile.shown_text(argument.key)), argument.key || argument.value::text, false
            from jsonb_each(request) as argument
          union all
          select case when jsonb_typeof(row.value) = 'object'
                   then format('column "%s" of row %s', tensile.shown_text(field.key), row.number)
                   else format('row %s', row.number) end, field.key || field.value::text, true
            from unnest(rows) with ordinality as row (value, number)
           cross join jsonb_each(case when jsonb_typeof(row.value) = 'object' then row.value
                                      else jsonb_build_object('', row.value) end) as field)
         as part (subject, content, of_row)
   where tensile.invalid_byte(part.content) is not null
   limit 1;
  if place is null then
    return null;
  end if;
  return jsonb_build_object('ok', false, 'error', jsonb_build_object(
    'sqlstate', '22021', 'message', format('%s has a text that is not valid UTF-8', place.subject),
    'detail', format('The first byte at fault is %s. The encoding of the database is SQL_ASCII, in which PostgreSQL '
                     'accepts any bytes and converts none, whatever client_encoding is.', place.byte),
    'hint', case when place.of_row
      then 'Convert it to UTF-8. For example, convert_from(convert(convert_to(t.name, ''SQL_ASCII''), ''LATIN1'', '
           '''UTF8''), ''UTF8'') converts the text t.name from LATIN1.'
      else 'Write it in UTF-8.' end));
end
$$;
comment on function tensile.text_fault(jsonb, jsonb[]) is
  'returns null, or in a database in SQL_ASCII the answer that a request with a text that is not valid UTF-8 is refused with';

create function tensile.answer(verb text, request jsonb, rows jsonb[] default null) returns jsonb
  language plpgsql volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
declare
  fault jsonb;
begin
  if getdatabaseencoding() = 'SQL_ASCII' then
    fault := tensile.text_fault(request, rows);
    if fault is not null then
      return fault;
    end if;
  end if;
  return tensile.bridge(verb, request, rows);
end
$$;
comment on function tensile.answer(text, jsonb, jsonb[]) is
  'returns the answer of tensile.bridge, which is an error if a text of the request is not valid UTF-8';

-- A text of a relation, or a name of its: the bridge asks after PostgreSQL has refused to hand one over.
create function tensile.invalid_place(
  relation oid, ignored text[], out place text, out name text
)
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  title constant text := tensile.shown_text(relation::regclass::text);
  key text;
  shown_column record;
begin
  if title <> relation::regclass::text then
    place := format('the name of %s', title);
    return;
  end if;
  select string_agg(format('%L || tensile.shown_text(t.%I::text)', a.attname || ' ', a.attname), ' || '', '' || '
                    order by a.attnum)
    into key
    from pg_index as i
    join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = any (i.indkey)
   where i.indrelid = relation and i.indisprimary;
  for shown_column in
    select a.attname as name, tensile.shown_text(a.attname::text) as shown, t.typtype as kind, t.oid as type
      from pg_attribute as a
      join pg_type as t on t.oid = a.atttypid
     where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
       and (t.typcategory in ('S', 'E', 'A', 'Z') or t.typname in ('json', 'jsonb')
            or tensile.invalid_byte(a.attname::text) is not null)
       and not coalesce(a.attname::text = any (ignored), false)
     order by tensile.invalid_byte(a.attname::text), a.attnum
  loop
    if shown_column.shown <> shown_column.name then
      place := format('the name of column "%s" of %s', shown_column.shown, title);
      return;
    end if;
    if exists (select from pg_enum where enumtypid = shown_column.type and tensile.invalid_byte(enumlabel) is not null) then
      place := format('a label of the type of column "%s" of %s', shown_column.name, title);
      return;
    end if;
    execute format(
      'select %s from %s as t where tensile.invalid_byte(t.%I::text) is not null limit 1',
      coalesce(key, quote_literal('')), relation::regclass, shown_column.name) into place;
    if place is not null then
      place := format('a text in column "%s" of %s%s', shown_column.name, title,
                      case when place <> '' then format(', in the row with the key %s,', place) else '' end);
      name := shown_column.name;
      return;
    end if;
  end loop;
end
$$;
comment on function tensile.invalid_place(oid, text[]) is
  'returns where a relation has a text or a name that is not valid UTF-8, or null, and for a text the name of its column; '
  'reads the relation with the caller''s privileges, without the columns of "ignored"';

revoke execute on function tensile.invalid_byte(text), tensile.shown_text(text), tensile.text_fault(jsonb, jsonb[]),
  tensile.answer(text, jsonb, jsonb[]), tensile.invalid_place(oid, text[]) from public;
grant execute on function tensile.invalid_byte(text), tensile.shown_text(text), tensile.text_fault(jsonb, jsonb[]),
  tensile.answer(text, jsonb, jsonb[]), tensile.invalid_place(oid, text[]) to tensile_user;
