-- The needs of each training under a third of the budget. Each is captured and planned without memory, before anything
-- is allocated.
set client_min_messages = warning;
select m.model, e.policy, pg_size_pretty(e.peak_bytes) as peak, pg_size_pretty(e.floor_bytes) as floor, e.swaps, e.recomputed,
       case when e.saved >= 0 then round(100 * e.saved::numeric) end as saved_percent,
       round(e.iteration_ms) as iteration_ms, round(e.overhead::numeric, 2) as overhead, e.starts_now
  from unnest(array['digits', 'breast_cancer', 'diabetes']) as m(model),
       tensile_explain(m.model, m.model::regclass, memory_limit => '120MB') as e;
