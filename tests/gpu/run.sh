#!/bin/sh
# Runs everything that wants a GPU on the machine that has one, and records what it measures.
#
#   sh tests/gpu/run.sh [RESULTS [NETWORK …]]   one JSON object per line; gpu-results.jsonl where no file is named
#
# For each network named (resnet50, bert, …) the benchmarks step, forecast, exact and maxbatch run too, some minutes each.
# Nothing is fetched: the library is built in a copy of the sources with what `python3` (or PYTHON) has. That is torch
# with CUDA, pytest, nanobind, CMake, a C++20 compiler, Python's headers and nvidia-ml-py. Where MPS is installed, what
# it changes is measured once more under a server of its own. Ends with pytest's exit code.
set -eu
python=${PYTHON:-python3}
sources=$(cd "$(dirname "$0")/../.." && pwd)
TENSILE_GPU_RESULTS=$(realpath -m "${1:-gpu-results.jsonl}")
export TENSILE_GPU_RESULTS
[ $# -eq 0 ] || shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cp -r "$sources/indb_tensile" "$sources/native" "$sources/tests" "$sources/worker" "$sources/pyproject.toml" "$scratch"
cd "$scratch"
cmake -S native -B build -DCMAKE_BUILD_TYPE=Release --compile-no-warning-as-error \
  -DPython_EXECUTABLE="$(command -v "$python")" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" >build.log 2>&1 &&
  cmake --build build --parallel "$(nproc)" >>build.log 2>&1 &&
  cmake --install build --prefix . >>build.log 2>&1 || { cat build.log; exit 1; }

"$python" - >"$TENSILE_GPU_RESULTS" <<'END'
import json
import platform
import torch
from indb_tensile.executor.cuda import probe
found = probe()
print(json.dumps({"machine": str(found), "torch": torch.__version__, "cuda": torch.version.cuda,
                  "python": platform.python_version(), "system": platform.platform()}))
END

suite() { "$python" -m pytest -p no:cacheprovider -s -ra --confcutdir=tests/gpu tests/gpu "$@"; }
code=0
suite || code=$?
if command -v nvidia-cuda-mps-control >/dev/null; then
  export CUDA_MPS_PIPE_DIRECTORY="$scratch/mps" CUDA_MPS_LOG_DIRECTORY="$scratch/mps"
  mkdir "$scratch/mps"
  nvidia-cuda-mps-control -d
  suite -k "killed or lanes" || code=$?
  echo quit | nvidia-cuda-mps-control
fi
for network; do
  for benchmark in step forecast exact maxbatch; do
    echo "$benchmark of $network"
    "$python" -m indb_tensile.bench $benchmark --device cuda --models "$network" --json >>"$TENSILE_GPU_RESULTS" || code=$?
  done
done
echo "measured: $TENSILE_GPU_RESULTS"
exit "$code"
