#!/bin/sh
# Sets everything up, then trains three deep models at once from SQL on a device that could not hold them unplanned: the
# processor, with little memory. Where there is a GPU that can be used, the same three train on it afterwards, with all
# the memory it has.
# May be run again: it finds what is there and goes on.
set -eu
cd "$(dirname "$0")/.."
. examples/setup.sh

# Whether there is a driver for GPUs; whether torch can use one of them is the controller's to say.
has_driver() {
  PATH=$PATH:/sbin ldconfig -p | grep -q 'libcuda\.so\.1' || [ -e /usr/lib/wsl/lib/libcuda.so.1 ]
}

setup
tensile=.venv/bin/tensile

say "start the embedded PostgreSQL and a controller, on the processor and with a file on disk to swap to"
$tensile up --device cpu --capacity 1GB --budget 360MB --policy tensile+

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

if has_driver; then
  say "the same three on the GPU, with the memory that it has, where it can be used"
  $tensile up --device auto
  case $($tensile up --json) in
    *'"device": "cuda:'*)
      $tensile psql -q -f examples/sql/train.sql
      $tensile watch
      $tensile psql -q -f examples/sql/report.sql
      ;;
    *) echo "the GPU is not used; why: $tensile doctor" ;;
  esac
fi

cat <<'END'

The service runs on. Try:
  .venv/bin/tensile psql                          a session as the role demo
  select tensile_train('digits', 'digits');       then: select * from tensile.stat_progress_train;
  select tensile_predict('diabetes', d) from diabetes d limit 5;
  .venv/bin/tensile jobs                          what ran
  .venv/bin/tensile down                          stop; models stay. tensile up brings it back
END
