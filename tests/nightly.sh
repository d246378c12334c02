#!/bin/sh
# Runs the tests that take longer than the test command may: tests marked nightly, all properties with many other
# examples, the native tests under both sanitizers, the manual, chaos tests, and the soak tests that kill hundreds of
# trainers. Sets everything up as tests/run.sh does.
#
#   sh tests/nightly.sh                    all parts
#   sh tests/nightly.sh chaos soak         these parts, for instance the failed ones again
#
# A part that fails ends no other one. Each has a log, .cache/nightly-PART.log; the last lines say which parts failed,
# and then the exit code is 1. SEED (default: 1) is the seed of chaos and soak tests.
set -eu
cd "$(dirname "$0")/.."
. examples/setup.sh

PARTS="slow properties timm native manual chaos chaos-default-lease chaos-ranks controllers soak-rounds soak"
for part in "$@"; do
  case " $PARTS " in *" $part "*) ;; *) die "there is no part $part; the parts are: $PARTS" ;; esac
done
[ $# -gt 0 ] || set -- $PARTS

setup
install_test_tools
tensile=.venv/bin/tensile
# A property with many examples may take longer than the ten minutes that a test has by day.
tests=".venv/bin/python -m pytest --numprocesses 2 --dist loadfile --timeout 3600"
seed=${SEED:-1}
# The sessions of test servers start Python and compile the bridge themselves, as those of users do.
export SUITE_PLAIN_SESSIONS=1
# As in tests/run.sh: idle threads of numpy's OpenBLAS and of OpenMP spin.
idle_threads="OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1"

# Install timm and torchvision beside the environment, because every other test shall run without them. Without their
# dependencies, because torchvision would bring another build of torch; it is the one for torch 2.13.
install_timm() {
  wanted="timm>=1.0 torchvision==0.28.0"
  fresh timm "$wanted" && [ -d .cache/timm ] && return 0
  rm -rf .cache/timm
  # shellcheck disable=SC2086
  pip_install --no-deps --target .cache/timm $wanted
  printf '%s' "$wanted" >.venv/.timm
}

title_of() {
  case $1 in
    slow) echo "tests that take long" ;;
    properties) echo "properties, with many random examples" ;;
    timm) echo "networks of timm, which lies beside the environment" ;;
    native) echo "native tests under the address, undefined-behaviour and thread sanitizers" ;;
    manual) echo "the manual: dead links and references" ;;
    chaos) echo "chaos: 500 events at a lease of 6 s" ;;
    chaos-default-lease) echo "chaos: 100 events at the default lease" ;;
    chaos-ranks) echo "chaos: 200 kills and 50 stops of trainers and controllers of jobs on several devices" ;;
    controllers) echo "controllers: 200 jobs on four simulated devices, and jobs of several devices among single ones" ;;
    soak-rounds) echo "soak: 550 rounds of jobs that share memory in phases, with members killed and parked" ;;
    soak) echo "soak: 500 trainers killed at random moments" ;;
  esac
}

# shellcheck disable=SC2086
run_part() {
  case $1 in
    slow) env $idle_threads $tests -m "nightly and not hypothesis" ;;
    properties) env $idle_threads $tests -m hypothesis --hypothesis-profile=search ;;
    timm)
      install_timm && env $idle_threads PYTHONPATH="$(pwd)/.cache/timm" $tests -m "" -k timm tests/learning/test_timm.py \
        tests/bench/test_exact.py tests/executor/capture/test_step_numbers.py tests/e2e/test_timm.py ;;
    native) sh tests/native/run.sh ;;
    manual) sh docs/build.sh ;;
    chaos) $tensile bench chaos --lease 6 --events 500 --seed "$seed" ;;
    chaos-default-lease) $tensile bench chaos --events 100 --seed "$seed" ;;
    chaos-ranks)
      $tensile bench chaos --devices 3 --controllers 4 --kinds signals --events 250 --lease 6 --seed "$seed" ;;
    controllers) $tensile bench controllers && $tensile bench controllers --gangs 20 --mean 120 ;;
    soak-rounds) $tensile bench soak --rounds 550 --seed "$seed" ;;
    soak) $tensile bench soak --kills 500 --seed "$seed" ;;
  esac
}

failed=
for part in "$@"; do
  say "$part: $(title_of "$part")"
  begun=$(date +%s)
  { run_part "$part" 2>&1 && echo 0 >.cache/nightly.code || echo $? >.cache/nightly.code; } |
    tee ".cache/nightly-$part.log"
  code=$(cat .cache/nightly.code)
  say "$part ended after $(($(date +%s) - begun)) s with exit code $code"
  [ "$code" -eq 0 ] || failed="$failed $part"
done

if [ -n "$failed" ]; then
  say "failed:$failed"
  for part in $failed; do
    say "the end of .cache/nightly-$part.log"
    tail -n 20 ".cache/nightly-$part.log"
  done
  say "repeat with: sh tests/nightly.sh$failed"
  exit 1
fi
say "passed: $*"
