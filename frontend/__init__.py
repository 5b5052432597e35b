"""Capture of PyTorch programs, the compile driver, and the public API."""

RARE_COLLECTIONS = (50_000, 20, 20)
"""Arguments of `gc.set_threshold` during a compilation, which make garbage collections rare.

The first number is the new objects until a collection of the youngest generation. The others are the collections of a
generation until one of the next older generation. With Python's defaults, garbage collection takes a quarter of the
time of a model's passes if PyTorch is loaded."""
