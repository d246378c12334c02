#!/bin/sh
# Runs everything that wants a GPU on the machine that has one, part after part, and records what it measures.
#
#   sh tests/gpu/run.sh                       all parts: under 30 minutes, none longer than 10
#   sh tests/gpu/run.sh kills together        these parts, in the script's order
#   sh tests/gpu/run.sh --skip bench          all but these
#   sh tests/gpu/run.sh --list                what the parts are
#   sh tests/gpu/run.sh --to DIRECTORY …      where results go; without it $OUT, else gpu-results
#
# The directory gets results.jsonl, one JSON object a line with the machine's name in each, and the output of each part.
# Nothing is fetched: the library is built in a copy of the sources with what `python3` (or PYTHON) has. That is torch
# with CUDA, pytest, nanobind, CMake, a C++20 compiler, Python's headers and nvidia-ml-py; neither psycopg, SQLAlchemy
# nor msgspec. A part that lacks something says what. Ends with 1 where a part failed.
set -eu
python=${PYTHON:-python3}
sources=$(cd "$(dirname "$0")/../.." && pwd)
case " $* " in *" --list "*) exec "$python" "$sources/tests/gpu/parts.py" "$@" ;; esac
TENSILE_GPU_RESULTS=$(realpath -m "${OUT:-gpu-results}")
TENSILE_GPU_HERE=$(pwd)  # what --to is relative to
export TENSILE_GPU_RESULTS TENSILE_GPU_HERE
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cp -r "$sources/indb_tensile" "$sources/native" "$sources/tests" "$sources/worker" "$sources/pyproject.toml" "$scratch"
cd "$scratch"
started=$(date +%s)
cmake -S native -B build -DCMAKE_BUILD_TYPE=Release --compile-no-warning-as-error \
  -DPython_EXECUTABLE="$(command -v "$python")" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" >build.log 2>&1 &&
  cmake --build build --parallel "$(nproc)" >>build.log 2>&1 &&
  cmake --install build --prefix . >>build.log 2>&1 || { cat build.log; exit 1; }
TENSILE_GPU_BUILD_S=$(($(date +%s) - started))
export TENSILE_GPU_BUILD_S
"$python" tests/gpu/parts.py "$@"
