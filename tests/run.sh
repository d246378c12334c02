#!/bin/sh
# Sets everything up and passes the tests: format, lint, types, layers, native tests, the suite against a real PostgreSQL.
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
say "mypy"
$bin/mypy --no-error-summary indb_tensile worker tests
say "import contracts"
$bin/lint-imports >.cache/imports.log || { cat .cache/imports.log; exit 1; }
say "native library: warnings as errors, sanitizers"
sh tests/native/run.sh
say "suite"
exec $bin/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder "$@"
