"""Capture of PyTorch programs, the compile driver, and the public API."""

RARE_COLLECTIONS = (50_000, 20, 20)
"""Arguments of `gc.set_threshold` during a compilation: new objects, then collections of the younger generation.

With Python's defaults, garbage collection takes a quarter of the time of a model's passes if PyTorch is loaded."""
