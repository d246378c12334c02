-- Statements of page_browsers.py.

-- sessions --
select pid from pg_stat_activity where application_name = 'tensile web' and datname = current_database();
