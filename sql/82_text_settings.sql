-- Values become text and JSON in the same form in every session: no setting of a session changes a prediction, an
-- evaluation or the split of a training. The form is the one that a table's binary values are given when they are read
-- (learning/binaryvalues.py). What a view computes is the caller's own query, and sees the caller's settings.

do $$
declare
  routine regprocedure;
begin
  for routine in
    select p.oid::regprocedure from pg_proc as p
     where p.pronamespace = 'tensile'::regnamespace
       and p.proname in ('prediction', 'predictions', 'row_bytes', 'row_json', 'key_text')
  loop
    execute format('alter routine %s set extra_float_digits = 1', routine);  -- the shortest exact digits
    execute format('alter routine %s set datestyle = iso', routine);
    execute format('alter routine %s set intervalstyle = postgres', routine);
    execute format('alter routine %s set timezone = %L', routine, 'UTC');
    execute format('alter routine %s set bytea_output = hex', routine);
  end loop;
end
$$;

-- What a training's notices tell of a column names its type.
alter function tensile.call(text, jsonb, jsonb[]) set quote_all_identifiers = off;
