#!/bin/sh
# Build the device library with warnings as errors and run its C++ tests under the address and undefined-behaviour
# sanitizers, and under the thread sanitizer, or without sanitizers on request. Needs cmake, ninja and a C++20 compiler.
#
#   sh tests/native/run.sh                 under both
#   sh tests/native/run.sh thread          one of: plain, address, thread
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)

run() {
    build="$root/.build/native-$1"
    # Without optimisation the build is three times as fast. The optimised build of the package gives warnings too.
    cmake -S "$root/native" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE= -DCMAKE_CXX_FLAGS="-O0 -g1" \
        -DTENSILE_PYTHON_MODULE=OFF -DTENSILE_NATIVE_TESTS=ON -DTENSILE_SANITIZE="$2" >"$build.log" 2>&1 ||
        { cat "$build.log" >&2; exit 1; }
    cmake --build "$build" >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
    echo "native tests, $1:"
    ctest --test-dir "$build" --output-on-failure --no-tests=error
}

mkdir -p "$root/.build"
case "${1:-all}" in
    plain) run plain "" ;;
    address) run address address,undefined ;;
    thread) run thread thread ;;
    all)
        run address address,undefined
        run thread thread
        ;;
    *)
        echo "run.sh: '$1' is not one of plain, address, thread" >&2
        exit 2
        ;;
esac
