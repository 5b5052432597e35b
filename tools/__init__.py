"""The commands `deplodock`, `dl-opt` and `dl-gui`."""
