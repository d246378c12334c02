-- Statements of checkpoints.py.

-- enqueue --
insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)
values ('bench', 1, 'public', 't', jsonb_build_object(
  'model', 'bench', 'target', 'y', 'task', 'regression', 'architecture', jsonb_build_object('type', 'mlp'),
  'relation', jsonb_build_object('oid', 1, 'schema', 'public', 'name', 't')))

-- written --
select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint

-- kept --
select pg_total_relation_size('tensile.checkpoint_chunks') + pg_total_relation_size('tensile.checkpoints')

-- vacuum --
vacuum tensile.checkpoint_chunks

-- fsync --
select current_setting('fsync')
