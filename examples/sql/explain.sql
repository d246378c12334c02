-- What each training would need, before anything is allocated: captured and planned without memory.
set client_min_messages = warning;
select m.model, e.policy, pg_size_pretty(e.peak_bytes) as peak, pg_size_pretty(e.floor_bytes) as floor,
       round(e.iteration_ms) as iteration_ms, e.swaps, e.starts_now
  from unnest(array['digits', 'breast_cancer', 'diabetes']) as m(model),
       tensile_explain(m.model, m.model::regclass) as e;
