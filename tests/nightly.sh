#!/bin/sh
# Runs the tests that take longer than the test command may: tests marked nightly, all properties with many other
# examples, the native tests under both sanitizers, the manual, chaos tests, and the soak test that kills hundreds of
# trainers. Sets everything up as tests/run.sh does. The exit code is 1 if any test fails.
set -eu
cd "$(dirname "$0")/.."
. examples/setup.sh

setup
install_test_tools
tensile=.venv/bin/tensile
code=0

say "tests that take long"
.venv/bin/python -m pytest --numprocesses 2 --dist loadfile -m "nightly and not hypothesis" || code=1
say "properties, with many random examples"
.venv/bin/python -m pytest --numprocesses 2 --dist loadfile -m hypothesis --hypothesis-profile=search || code=1
say "native tests under the address, undefined-behaviour and thread sanitizers"
sh tests/native/run.sh || code=1
say "the manual: dead links and references"
sh docs/build.sh || code=1
say "chaos: 500 events at a lease of 6 s"
$tensile bench chaos --lease 6 --events 500 --seed "${SEED:-1}" || code=1
say "chaos: 100 events at the default lease"
$tensile bench chaos --events 100 --seed "${SEED:-1}" || code=1
say "soak: 150 rounds of jobs that share memory in phases, with members killed and parked"
$tensile bench soak --rounds 150 --seed "${SEED:-1}" || code=1
say "soak: 500 trainers killed at random moments"
$tensile bench soak --kills 500 --seed "${SEED:-1}" || code=1
exit $code
