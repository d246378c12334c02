#!/bin/sh
# Runs the test command: set-up, format, lint, types, import contracts, native tests, the suite on a real PostgreSQL.
# Arguments go to pytest: sh tests/run.sh tests/scheduler -k peak
set -eu
cd "$(dirname "$0")/.."
. examples/setup.sh

setup
install_test_tools
bin=.venv/bin

say "ruff"
$bin/ruff format --check --quiet . || die "these files are not formatted: run .venv/bin/ruff format ."
$bin/ruff check --quiet .
say "clang-format"
# shellcheck disable=SC2046
$bin/clang-format --dry-run --Werror $(find native tests/native -name '*.[ch]' -o -name '*.[ch]pp') ||
  die "these files are not formatted: run .venv/bin/clang-format -i on them"
say "native tests with warnings as errors and the address sanitizer, on one core while the rest goes on"
sh tests/native/run.sh address >.cache/native.log 2>&1 &
native=$!
trap 'kill $native 2>/dev/null || true' EXIT
say "mypy and import contracts"
$bin/mypy --no-error-summary indb_tensile worker tests
$bin/lint-imports >.cache/imports.log || { cat .cache/imports.log; exit 1; }
say "suite"
# Tests also wait for PostgreSQL and other processes, so there is one process more than cores. Each takes four seconds
# to collect the tests.
processes=$(($(nproc) + 1))
[ "$processes" -le 4 ] || processes=4
# Hundreds of processes import the package and torch. Without stored bytecode each of them compiles the sources again.
unset PYTHONDONTWRITEBYTECODE
# Several test processes share the cores. Idle threads of numpy's OpenBLAS and of OpenMP spin, and took half of the time.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
code=0
$bin/python -m pytest --numprocesses "$processes" --dist loadfile --no-loadscope-reorder --durations=30 "$@" || code=$?
wait $native || { cat .cache/native.log; die "the native tests failed"; }
exit $code
