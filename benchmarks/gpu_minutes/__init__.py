"""The commands of gpu_minutes.sh."""
