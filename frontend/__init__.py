"""From PyTorch, or IR, to a program that can be called."""

RARE_COLLECTIONS = (50_000, 20, 20)
"""Thresholds of `gc.set_threshold` while programs are compiled, in new objects and in collections of the younger
generation. By default the collector looks at the newest objects after each 700, and at all whenever a quarter more of
them are alive: a quarter of the time of the passes of a model, in a process in which PyTorch is loaded."""
