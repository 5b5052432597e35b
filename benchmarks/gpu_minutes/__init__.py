"""Nine minutes of checks and measurements on a GPU: the commands that `benchmarks/gpu_minutes.sh` runs."""
