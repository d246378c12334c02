-- Statements of cpu.py.

-- allow_login --
alter role {} login

-- make_table --
create table public.mixed as
select (random() * 100)::float8 as n1, (random() * 10 - 5)::float8 as n2, random()::real as n3,
       (random() * 1000)::integer as n4, (random() * 30)::smallint as n5, (random() * 1e6)::bigint as n6,
       (random() * 100)::numeric(8, 2) as n7, case when random() > 0.05 then random() * 7 end as n8,
       random() as n9, random() as n10, (random() * 12)::integer as n11, random()::real as n12, random() as n13,
       random()::real as n14,
       'a' || (random() * 5)::integer as c1, 'b' || (random() * 2)::integer as c2, 'c' || (random() * 40)::integer as c3,
       'd' || (random() * 200)::integer as c4, case when random() > 0.1 then 'e' || (random() * 9)::integer end as c5,
       random() < 0.3 as b1, random() < 0.5 as b2, random() < 0.9 as b3,
       timestamp '2020-01-01' + random() * interval '900 days' as t1,
       date '2020-01-01' + (random() * 900)::integer as d1, 0.0::float8 as y
  from generate_series(1, {rows})

-- fill_target --
update public.mixed
   set y = 0.3 * n1 + n2 * n2 + 10 * (c1 = 'a1')::integer + 5 * b1::integer + 2 * coalesce(n8, 0) + random()

-- compact --
vacuum (full, analyze) public.mixed

-- make_small_table --
create table public.small as select n1, n2, n9, n10, y from public.mixed limit 20000

-- let_read --
grant select on public.mixed, public.small to tensile_reader

-- train --
select public.tensile_train(%(model)s, %(relation)s, 'y', architecture => %(architecture)s, hyperparams => %(hyperparams)s)

-- state --
select j.state::text, j.phase::text, j.error_message, m.value
  from tensile.jobs as j
  left join lateral (select v.metrics ->> 'r2' as value from tensile.model_versions as v where v.version_id = j.version_id)
    as m on true
 where j.job_id = %(job)s

-- cancel --
select public.tensile_cancel(j.job_id) from tensile.jobs as j where j.state in ('queued', 'starting', 'running')

-- memory --
select coalesce(sum(d.granted_bytes), 0)::bigint, coalesce(sum(d.high_water_bytes), 0)::bigint, count(*)
  from tensile.device_jobs as d

-- steps --
select count(*) filter (where p.step >= %(steps)s), count(*) filter (where j.state in ('failed', 'cancelled'))
  from tensile.jobs as j left join tensile.job_progress as p on p.job_id = j.job_id
 where j.job_id = any (%(jobs)s)

-- swapped --
select coalesce(sum(p.swapped_bytes), 0)::bigint, coalesce(sum(p.recomputed), 0)::bigint
  from (select distinct on (q.job_id) q.* from tensile.plans as q
         where q.job_id = any (%(jobs)s) order by q.job_id, q.generation desc) as p

-- ready --
select count(*) from tensile.workers as w where w.stopped_at is null
