"""Programs, results and journals that all rooms use."""
