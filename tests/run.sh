#!/bin/sh
# Runs the test command: set-up, format, lint, types, import contracts, native tests, the suite on a real PostgreSQL.
# Arguments go to pytest: sh tests/run.sh tests/scheduler -k peak
set -eu
cd "$(dirname "$0")/.."
. examples/setup.sh

setup
install_test_tools
bin=.venv/bin

# Every check has a log, .cache/NAME.log, and runs beside the suite.
check_format() {
  $bin/ruff format --check --quiet . || die "these files are not formatted: run .venv/bin/ruff format ."
  $bin/ruff check --quiet . || die "ruff has found faults in these files"
  # shellcheck disable=SC2046
  $bin/clang-format --dry-run --Werror $(find native tests/native -name '*.[ch]' -o -name '*.[ch]pp') ||
    die "these files are not formatted: run .venv/bin/clang-format -i on them"
}
check_types() { $bin/mypy --no-error-summary indb_tensile worker tests; }
check_imports() { $bin/lint-imports; }
check_native() { TENSILE_FEW_DRAWS=1 sh tests/native/run.sh address; }

# Tests also wait for PostgreSQL and other processes, so there is one process more than cores. Each takes ten seconds of
# a processor to collect the tests, to start a server and to import torch.
# nproc counts OMP_NUM_THREADS as the number of cores, so it is asked before that is set.
processes=$(($(nproc) + 1))
[ "$processes" -le 6 ] || processes=6
# Hundreds of processes import the package and torch. Without stored bytecode each of them compiles the sources again.
unset PYTHONDONTWRITEBYTECODE
# Several test processes share the cores. Idle threads of numpy's OpenBLAS and of OpenMP spin, and took half of the time.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

# If this script is killed, tests/suite_watcher.py ends pytest, its servers and these checks.
export SUITE_SCRIPT=$$

say "format, lint, types, import contracts, and native tests with the address sanitizer, beside the suite"
rm -f .cache/*.failed
(
  for name in format types imports native; do
    ("check_$name") >".cache/$name.log" 2>&1 || echo "$name" >".cache/$name.failed"
  done
  times >.cache/checks.times
) &
checks=$!
trap 'kill $checks 2>/dev/null || true' EXIT
# On a busy machine a deadline may strike although nothing is wrong. Such a test runs once more, and the summary names
# it. Values that are wrong are never tried again, and tests/nightly.sh tries nothing again.
deadlines="--reruns 1 -r aR --only-rerun BrokenBarrierError --only-rerun QueryCanceled
  --only-rerun TimeoutError --only-rerun TimeoutExpired --only-rerun within.[0-9.]+.s"
say "suite"
color=no
[ ! -t 1 ] || color=yes
code=0
{
  code=0
  # shellcheck disable=SC2086
  $bin/python tests/processor_time.py .cache/suite.seconds \
    $bin/python -m pytest --color=$color --numprocesses "$processes" --dist loadfile --no-loadscope-reorder \
    --durations=30 $deadlines "$@" || code=$?
  echo $code >.cache/suite.code
} | tee .cache/suite.log
code=$(cat .cache/suite.code)
wait $checks
for failed in .cache/*.failed; do
  [ -e "$failed" ] || continue
  name=$(cat "$failed")
  say "failed: $name"
  cat ".cache/$name.log"
  code=1
done
# Wall-clock time depends on what else the machine does, so the budget is in processor time (docs/developer/testing.md).
say "processor time: $(cat .cache/suite.seconds) s of the suite; its budget is 520 s with the checks beside it, which took
   (user and system, this shell and its children): $(tr '\n' ' ' <.cache/checks.times)"
# The last line says how many tests have passed, also below the failures of the checks.
tail -n 1 .cache/suite.log
exit "$code"
