"""The parts of `tile-assign-layouts`: which tiles must agree, and what their layouts should be."""
