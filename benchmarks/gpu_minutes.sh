#!/usr/bin/env bash
# Nine minutes on a GPU of a machine without a network: versions, tests, results, sanitizers, times, a profile.
#
#   make gpu-bundle                     # before, on a machine with a network: build/gpu-bundle travels with the checkout
#   bash benchmarks/gpu_minutes.sh [--out FOLDER] [--resume FOLDER] [--budget SECONDS] [--only STEP] [--limit STEP=SECONDS]
#
# Results are eight files in $OUT, or in build/gpu-minutes, and grow as they are written. A second call continues with
# the files of the first one, from the same folder or from `--resume FOLDER`. PYTHON chooses the interpreter.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$here" || exit 2
export PYTHONUNBUFFERED=1
exec "${PYTHON:-python3}" -m benchmarks.gpu_minutes "$@"
