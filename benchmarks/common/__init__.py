"""Programs, result files and journals that all folders of `benchmarks/` use."""
