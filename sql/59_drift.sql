-- Drift: how far the inputs of predictions differ from those of the training.
--
-- A training stores bins of its input columns and how many training rows are in each (learning/evaluation/input_bins.py). For a
-- model whose owner asks for it, services and workers count predicted rows by the same bins. Nothing else of a predicted
-- row is stored. Only the model's owner and tensile_monitor see the counts: those of a few predictions would show another
-- role what somebody has predicted.

create function public.tensile_measure_drift(model text, active boolean default true) returns void
  language plpgsql volatile parallel unsafe
  set search_path = pg_catalog, pg_temp
as $$
declare
  changed bigint;
begin
  perform public.tensile_require_role('tensile_user');
  changed := tensile.lock_own_model(model, 'measure the drift of');
  if active is null then
    raise exception 'active is null' using errcode = 'null_value_not_allowed',
      hint = 'Give true to count the inputs of predictions, or false to stop counting.';
  end if;
  update tensile.models as m set measure_drift = active where m.model_id = changed and m.measure_drift <> active;
end
$$;
comment on function public.tensile_measure_drift(text, boolean) is
  'begins to count the inputs of a model''s predictions, for tensile.stat_drift, or with false ends that; counts that '
  'were taken stay as long as the setting retain_drift says';

-- Half a row is added to each bin, so that an empty one gives a finite sum. Bins that are empty on both sides are left
-- out: with few predicted rows, half a row in each of them would look like drift.
create function tensile.population_stability(expected bigint[], actual bigint[]) returns double precision
  language sql immutable strict parallel safe
  set search_path = pg_catalog, pg_temp
as $$
  with shares as (
    select (b.expected + 0.5) / sum(b.expected + 0.5) over () as expected,
           (b.actual + 0.5) / sum(b.actual + 0.5) over () as actual,
           sum(b.expected) over () > 0 and sum(b.actual) over () > 0 as known
      from (select e::double precision as expected, a::double precision as actual
              from unnest(expected, actual) as u (e, a)) as b
     where b.expected + b.actual > 0
  )
  select sum((s.actual - s.expected) * ln(s.actual / s.expected)) from shares as s where s.known
$$;
comment on function tensile.population_stability(bigint[], bigint[]) is
  'returns the population stability index of two distributions over the same bins, given as counts: the sum over the '
  'bins of (actual - expected) * ln(actual / expected), where both are shares with half a row added to each bin; null '
  'if one has no rows';

-- Without any drift the index is on average (bins - 1) * (1 / expected rows + 1 / actual rows), because it is about a
-- chi-squared statistic times that sum (Yurdakul 2018, "Statistical Properties of Population Stability Index").
create function tensile.drift_of_chance(expected bigint[], actual bigint[]) returns double precision
  language sql immutable strict parallel safe
  set search_path = pg_catalog, pg_temp
as $$
  select (count(*) - 1) * (1 / nullif(sum(u.e), 0) + 1 / nullif(sum(u.a), 0))::double precision
    from unnest(expected, actual) as u (e, a) where u.e + u.a > 0
$$;
comment on function tensile.drift_of_chance(bigint[], bigint[]) is
  'returns the population stability index that chance alone gives on average for these counts; null if one has no rows';

create function tensile.drift_reading(psi double precision, chance double precision) returns text
  language sql immutable parallel safe
  set search_path = pg_catalog, pg_temp
as $$
  select case when psi is null or chance is null or chance >= 0.1 then 'too few rows'
              when psi < 0.1 then 'stable'
              when psi < 0.25 then 'moderate'
              else 'large' end
$$;
comment on function tensile.drift_reading(double precision, double precision) is
  'returns what a population stability index says: stable below 0.1, moderate below 0.25, else large; too few rows if '
  'chance alone gives 0.1 on average';

create function tensile.bin_labels(bins jsonb) returns text[]
  language sql immutable strict parallel safe
  set search_path = pg_catalog, pg_temp
as $$
  select case
    when bins ->> 'measure' = 'boolean' then array['false', 'true', 'missing']
    when bins ->> 'measure' = 'category'
    then array(select c.text::text
                 from jsonb_array_elements(bins -> 'categories') with ordinality as c (text, place) order by c.place)
         || array['other', 'missing']
    when jsonb_array_length(bins -> 'ends') = 0 then array['any', 'missing']
    else case when (bins -> 'below')::boolean
              then array['below ' || (bins #>> '{ends,0}'), bins #>> '{ends,0}']
              else array['up to ' || (bins #>> '{ends,0}')] end
         || array(select 'above ' || e.low || coalesce(' to ' || e.high, '')
                    from (select n.text, lead(n.text) over (order by n.place), n.place
                            from jsonb_array_elements_text(bins -> 'ends') with ordinality as n (text, place))
                      as e (low, high, place) order by e.place)
         || array['missing'] end
$$;
comment on function tensile.bin_labels(jsonb) is
  'returns a description of each bin of a column, from an element of the figure input_bins';

create view tensile.stat_drift with (security_invoker) as
with versions as (
  select m.name as model, coalesce(r.rolname, m.owner_name) as owner, v.version_id, v.number as version, v.deployed,
         m.measure_drift, c.figure as counts, b.figure as bins, p.rows, p.first_day, p.updated_at, p.predicted
    from tensile.models as m
    join tensile.model_versions as v on v.model_id = m.model_id
    left join tensile.version_figures as c on c.version_id = v.version_id and c.name = 'input_counts'
    left join tensile.version_figures as b on b.version_id = v.version_id and b.name = 'input_bins'
    left join pg_catalog.pg_roles as r on r.oid = m.owner_oid and m.installation = (select tensile.installation())
    left join lateral (
      select sum(d.rows)::bigint as rows, min(d.day) as first_day, max(d.updated_at) as updated_at,
             (select array_agg(s.rows order by s.place)
                from (select e.place, sum(e.rows)::bigint as rows
                        from tensile.predicted_inputs as o,
                             unnest(o.counts) with ordinality as e (rows, place)
                       where o.version_id = v.version_id and o.day >= (select tensile.first_drift_day())
                       group by e.place) as s) as predicted
        from tensile.predicted_inputs as d
       where d.version_id = v.version_id and d.day >= (select tensile.first_drift_day())) as p on true
   where m.dropped_at is null and (p.rows is not null or m.measure_drift and v.deployed)
     and (m.owner_oid = (select tensile.current_role_oid()) and m.installation = (select tensile.installation())
          or (select pg_catalog.pg_has_role('tensile_monitor', 'usage')))
), inputs as (
  select v.model, v.owner, v.version, v.deployed, v.measure_drift, v.first_day, v.updated_at,
         coalesce(v.rows, 0) as predicted_rows, (v.counts ->> 'rows')::bigint as training_rows, i.place,
         i.input ->> 'feature' as feature, i.input ->> 'measure' as measure, i.input ->> 'reason' as reason, v.counts,
         (select array_agg(n.count::bigint order by n.place)
            from jsonb_array_elements_text(i.input -> 'counts') with ordinality as n (count, place)) as expected,
         v.predicted[i.last_bin - i.size + 1 : i.last_bin] as actual,
         tensile.bin_labels(v.bins #> array['inputs', (i.measured - 1)::text]) as labels
    from versions as v
    left join lateral (
      select e.input, e.place, coalesce(jsonb_array_length(e.input -> 'counts'), 0) as size,
             count(*) filter (where e.input ? 'counts') over (order by e.place) as measured,
             (sum(coalesce(jsonb_array_length(e.input -> 'counts'), 0)) over (order by e.place))::integer as last_bin
        from jsonb_array_elements(v.counts -> 'inputs') with ordinality as e (input, place)) as i on true
)
select i.model, i.owner, i.version, i.deployed, i.measure_drift as active, i.feature, i.measure, s.psi,
       case when i.expected is null then 'not measured' else tensile.drift_reading(s.psi, s.chance) end as reading,
       i.predicted_rows, i.training_rows, i.first_day, i.updated_at,
       case when i.labels is not null then (
         select jsonb_agg(jsonb_build_object('bin', i.labels[e.place], 'training', e.rows,
                                             'predicted', coalesce(i.actual[e.place], 0)) order by e.place)
           from unnest(i.expected) with ordinality as e (rows, place)) end as bins,
       case when i.counts is null then 'the version has no bins: it came out of a file, forecasts series, or is older'
            else i.reason end as reason
  from inputs as i,
       lateral (select tensile.population_stability(i.expected, i.actual) as psi,
                       tensile.drift_of_chance(i.expected, i.actual) as chance) as s
 order by i.model, i.version, i.place;
comment on view tensile.stat_drift is
  'drift of inputs: for each version whose predictions were counted, and each input column, the population stability '
  'index of the predicted rows against the training rows; of models for which tensile_measure_drift was called, and '
  'only for their owners and tensile_monitor';
comment on column tensile.stat_drift.model is 'name of the model';
comment on column tensile.stat_drift.owner is 'owner of the model';
comment on column tensile.stat_drift.version is 'number of the version within its model';
comment on column tensile.stat_drift.deployed is 'true for the version that predicts when no version is named';
comment on column tensile.stat_drift.active is 'true if the inputs of the model''s predictions are counted now';
comment on column tensile.stat_drift.feature is 'input column; null for a version without bins';
comment on column tensile.stat_drift.measure is
  'what is compared: number, time, boolean, category, or the length of a text; null for a column that is not measured';
comment on column tensile.stat_drift.psi is
  'population stability index: 0 for equal distributions; null without predicted rows';
comment on column tensile.stat_drift.reading is
  'what the index says: stable (below 0.1), moderate (below 0.25), large, too few rows, or not measured';
comment on column tensile.stat_drift.predicted_rows is 'predicted rows that were counted since first_day';
comment on column tensile.stat_drift.training_rows is 'training rows that the bins were fitted to, at most 20000';
comment on column tensile.stat_drift.first_day is
  'first day with counts, in UTC; the setting retain_drift says how far back counts are kept';
comment on column tensile.stat_drift.updated_at is 'time at which counts were stored last';
comment on column tensile.stat_drift.bins is
  'the two distributions: the bins, and how many training rows and predicted rows are in each; null for tensile_monitor';
comment on column tensile.stat_drift.reason is 'why the column is not measured';

create policy inputs_of_owner on tensile.predicted_inputs for select to tensile_user
  using (exists (select from tensile.model_versions as v join tensile.models as m on m.model_id = v.model_id
                  where v.version_id = predicted_inputs.version_id
                    and m.owner_oid = (select tensile.current_role_oid())
                    and m.installation = (select tensile.installation())));
create policy inputs_monitored on tensile.predicted_inputs for select to tensile_monitor using (true);
create policy inputs_worked on tensile.predicted_inputs to tensile_worker using (true) with check (true);
grant select on tensile.predicted_inputs, tensile.stat_drift to tensile_user, tensile_monitor, tensile_worker;
grant insert, update on tensile.predicted_inputs to tensile_worker;
-- What services have stored is nothing that users see.
alter table tensile.count_batches enable row level security;
create policy count_batches_worked on tensile.count_batches to tensile_worker using (true) with check (true);
grant select, insert, update on tensile.count_batches to tensile_worker;

revoke execute on function tensile.population_stability(bigint[], bigint[]), tensile.drift_of_chance(bigint[], bigint[]),
  tensile.drift_reading(double precision, double precision), tensile.bin_labels(jsonb) from public;
grant execute on function tensile.population_stability(bigint[], bigint[]), tensile.drift_of_chance(bigint[], bigint[]),
  tensile.drift_reading(double precision, double precision), tensile.bin_labels(jsonb) to tensile_user, tensile_monitor, tensile_worker;
