#!/bin/sh
# Builds the manual as HTML in .build/docs/html; every warning, such as a dead link, is an error.
# The argument is another builder of Sphinx: `sh docs/build.sh linkcheck` asks every external address.
set -eu
cd "$(dirname "$0")/.."
. examples/setup.sh

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  say "create the virtual environment .venv"
  "${TENSILE_PYTHON:-python3}" -m venv .venv
fi
install_extra docs
builder=${1:-html}
.venv/bin/python -m sphinx -W --keep-going -n -q -b "$builder" -d .build/docs/doctrees docs ".build/docs/$builder"
say "the manual is in .build/docs/$builder"
