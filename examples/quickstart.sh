#!/bin/sh
# Sets everything up, then trains three deep models at once from SQL on a device that could not hold them unplanned.
# May be run again: it finds what is there and goes on.
set -eu
cd "$(dirname "$0")/.."
. examples/setup.sh

setup
tensile=.venv/bin/tensile

say "start the embedded PostgreSQL and a controller: on a GPU, else on the processor and with a file on disk to swap to"
$tensile up --capacity 1GB --budget 360MB --policy tensile+

say "load three real data sets, as the ordinary role demo"
$tensile psql -q -f examples/sql/load.sql

say "define three networks"
$tensile psql -q -f examples/sql/models.sql >/dev/null

say "look ahead: what each training needs, by policy"
$tensile psql -q -f examples/sql/explain.sql

say "enqueue three trainings in one transaction"
$tensile psql -q -f examples/sql/train.sql
$tensile watch

say "what was planned, and what happened"
$tensile psql -q -f examples/sql/report.sql

say "predictions beside the truth"
$tensile psql -q -f examples/sql/predict.sql

say "the same three without planning: a tensor is freed after its last use, and no more"
$tensile up --policy liveness >/dev/null
$tensile psql -q -f examples/sql/train.sql
$tensile psql -q -f examples/sql/unplanned.sql
$tensile up --policy tensile+ >/dev/null

cat <<'END'

The service runs on. Try:
  .venv/bin/tensile psql                          a session as the role demo
  select tensile_train('digits', 'digits');       then: select * from tensile.stat_progress_train;
  select tensile_predict('diabetes', d) from diabetes d limit 5;
  .venv/bin/tensile jobs                          what ran
  .venv/bin/tensile down                          stop; models stay. tensile up brings it back
END
