-- Statements of queue.py.

-- allow --
select public.tensile_set_quota('-', jobs_queued => %(count)s)

-- fill --
insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)
select 'bench', 1, 'public', 'bench',
       '{"model": "bench", "relation": {"oid": 1, "schema": "public", "name": "bench"}, "target": "y",
         "task": "regression", "architecture": {"type": "mlp"}}'
  from generate_series(1, %(count)s)
