#!/bin/sh
# Runs all tests and measurements that need a GPU, part after part, and records the results.
#
#   sh tests/gpu/run.sh                       all parts: under 30 minutes, none longer than 10
#   sh tests/gpu/run.sh kills together        only these parts, in the script's order
#   sh tests/gpu/run.sh --skip bench          all parts but these
#   sh tests/gpu/run.sh --list                list the parts
#   sh tests/gpu/run.sh --to DIRECTORY …      directory of the results; default: $OUT, else gpu-results
#
# The directory gets results.jsonl, one JSON object per line with the machine's name in each, and the output of each
# part. The script downloads nothing: it builds the library in a copy of the sources with the packages of `python3` (or
# PYTHON). These are torch with CUDA, pytest, nanobind, CMake, a C++20 compiler, Python's headers and nvidia-ml-py.
# psycopg, SQLAlchemy and msgspec are not needed. A part that lacks a package names it. The exit code is 1 if a part
# fails.
set -eu
python=${PYTHON:-python3}
sources=$(cd "$(dirname "$0")/../.." && pwd)
case " $* " in *" --list "*) exec "$python" "$sources/tests/gpu/parts.py" "$@" ;; esac
TENSILE_GPU_RESULTS=$(realpath -m "${OUT:-gpu-results}")
TENSILE_GPU_START=$(pwd)  # a relative --to starts here
export TENSILE_GPU_RESULTS TENSILE_GPU_START
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
