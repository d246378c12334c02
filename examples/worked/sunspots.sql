-- How many sunspots will there be? A network forecasts a series, beside forecasts that need no training.
--
--   .venv/bin/tensile psql -f examples/worked/sunspots.sql
--
-- The series is a wave of eleven years with noise, as the numbers of sunspots are; put your own table in its place.
\if :{?epochs}
\else
  \set epochs 60
\endif
set client_min_messages = warning;
drop table if exists sunspots;
create table sunspots as
select year, round((60 + 50 * sin(2 * pi() * year / 11) + 8 * sin(year * 7.3))::numeric, 1) as spots
  from generate_series(1750, 2000) as year;
grant select on sunspots to tensile_reader;

\echo 'six years ahead, from every year; the season is found in the series'
call tensile_train_and_wait('sunspots', 'sunspots', 'spots', task => 'forecast',
  forecast => '{"time": "year", "horizon": 6, "interval": 0.8}', hyperparams => jsonb_build_object('epochs', :epochs));
select subject, fact, value, warning 
  from tensile_data_report((select max(job_id) from tensile.stat_jobs where model = 'sunspots'))
 where section in ('split', 'result');

\echo 'the errors by how far ahead, beside the last value, the value a season before, and exponential smoothing'
select step, round(value::numeric, 2) as mae, round(naive::numeric, 2) as naive,
       round(seasonal_naive::numeric, 2) as seasonal_naive, round(exponential_smoothing::numeric, 2) as smoothing
  from tensile_forecast_metrics('sunspots') where metric = 'mae' order by step;

\echo 'the next years, and what the model would have said in 1990'
select "time", round(value::numeric, 1) as spots, round(lower::numeric, 1) as lower, round(upper::numeric, 1) as upper
  from tensile_forecast('sunspots', 'sunspots');
select f."time", round(f.value::numeric, 1) as forecast, s.spots
  from tensile_forecast('sunspots', 'sunspots', origin => '1990') as f join sunspots as s on s.year = f."time"::int;
