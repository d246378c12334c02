#!/bin/sh
# What takes longer than the test command may: tests marked nightly, storms over running jobs, and kills of trainers by
# the hundred.
# Sets everything up as tests/run.sh does, runs all of it, and ends with an exit code that says whether all was clean.
set -eu
cd "$(dirname "$0")/.."
. examples/setup.sh

setup
install_test_tools
tensile=.venv/bin/tensile
code=0

say "tests that take long"
.venv/bin/python -m pytest --numprocesses 2 --dist loadfile -m nightly || code=1
say "chaos: 500 events at a lease of 6 s"
$tensile bench chaos --lease 6 --events 500 --seed "${SEED:-1}" || code=1
say "chaos: 100 events at the default lease"
$tensile bench chaos --events 100 --seed "${SEED:-1}" || code=1
say "soak: 500 trainers killed at random moments"
$tensile bench soak --kills 500 --seed "${SEED:-1}" || code=1
exit $code
