-- Pins the settings that decide how values become text and JSON, so that no setting of a session changes a prediction,
-- an evaluation or the split of a training. The result is the same text as trainers make from the binary values of a
-- table (learning/decoding/binaryvalues.py). The query of a view still runs with the caller's settings.

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

-- The notices of a training name types of columns, which must not be quoted.
alter function tensile.call(text, jsonb, jsonb[]) set quote_all_identifiers = off;
