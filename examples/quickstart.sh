#!/bin/sh
# Sets everything up, then trains three deep models at once from SQL on the processor, with less memory than the
# models need without plans. If a GPU can be used, the same three then train on it, with all of its memory. The script
# may run again: it keeps what is installed and continues.
set -eu
cd "$(dirname "$0")/.."
. examples/setup.sh

# Succeeds if a driver for GPUs is installed. Only the controller finds out whether torch can use a GPU.
has_driver() {
  PATH=$PATH:/sbin ldconfig -p | grep -q 'libcuda\.so\.1' || [ -e /usr/lib/wsl/lib/libcuda.so.1 ]
}

setup
tensile=.venv/bin/tensile

say "start the embedded PostgreSQL and a controller on the processor, which swaps to a file on disk"
$tensile up --device cpu --capacity 1GB --budget 360MB --policy tensile+

say "load three real data sets, as the ordinary role demo"
$tensile psql -q -f examples/sql/load.sql

say "define three networks"
$tensile psql -q -f examples/sql/models.sql >/dev/null

say "explain the trainings: what each needs, by policy"
$tensile psql -q -f examples/sql/explain.sql

say "enqueue three trainings in one transaction"
$tensile psql -q -f examples/sql/train.sql
$tensile watch

say "compare plans with measurements"
$tensile psql -q -f examples/sql/report.sql

say "compare predictions with true values"
$tensile psql -q -f examples/sql/predict.sql

say "train the same three in turns, each with all of the memory and without a plan, as with a lock file"
TENSILE_MAX_JOBS=1 $tensile up --policy liveness >/dev/null
$tensile psql -q -f examples/sql/train.sql >/dev/null
$tensile watch

say "train them once more, shared: now all operators are measured, as they were for the turns"
$tensile up --policy tensile+ >/dev/null
$tensile psql -q -f examples/sql/train.sql >/dev/null
$tensile watch

say "compare turns with sharing"
$tensile psql -q -f examples/sql/compare.sql

if has_driver; then
  say "train the same three on the GPU, with all of its memory, if it can be used"
  $tensile up --device auto
  case $($tensile up --json) in
    *'"device": "cuda:'*)
      $tensile psql -q -f examples/sql/train.sql
      $tensile watch
      $tensile psql -q -f examples/sql/report.sql
      ;;
    *) echo "the GPU is not used; $tensile doctor says why" ;;
  esac
fi

cat <<'END'

The controller keeps running. Try:
  .venv/bin/tensile psql                          a session as the role demo
  select tensile_train('digits', 'digits');       then: select * from tensile.stat_progress_train;
  select tensile_predict('diabetes', d) from diabetes d limit 5;
  .venv/bin/tensile jobs                          list the jobs
  .venv/bin/tensile down                          stop; models are kept, and tensile up starts again
END
