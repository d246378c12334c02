-- Whether a worker is alive. The function has a parsed body and no SET clause, so PostgreSQL writes its expression in
-- place of each call. Measured: all statements with it have the plans and costs of the expression, and planning one takes
-- 13 us longer.

create function tensile.is_alive(worker tensile.workers) returns boolean
  language sql stable parallel safe
  return (worker).stopped_at is null and (worker).heartbeat_at > now() - make_interval(secs => (worker).lease_s);
comment on function tensile.is_alive(tensile.workers) is
  'returns whether the worker has not stopped and has sent a heartbeat within its lease';
