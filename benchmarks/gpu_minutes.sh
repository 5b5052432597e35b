#!/usr/bin/env bash
# What to run first on a GPU that is there for a short time: about 25 minutes, in calls of at most ten.
#
#   benchmarks/first_gpu_hour.sh [--budget SECONDS] [--out FOLDER] [--small] [--only STEP]
#
# Call it again until it says that all is done: it goes on with what is not. Results go to one folder,
# benchmarks/results/DEVICE-DATE/, with a log for each step, summary.json and summary.txt. No network is needed.
# `--help` lists the options; PYTHON chooses the interpreter.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$here" || exit 2
export PYTHONUNBUFFERED=1
export PYTHONPATH="$here/.typings${PYTHONPATH:+:$PYTHONPATH}"  # deplodock is found there, installed or not
exec "${PYTHON:-python3}" benchmarks/gpu_hour "$@"
