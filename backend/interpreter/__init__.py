"""The executable meaning of the tensor, loop and tile levels: one file per dialect, one for the payload they share.

A value is a NumPy array that *broadcasts to* the shape of its type: an index it does not depend on is an axis of
size 1. What an element is, is a parameter: the scalar domain (`domains.py`, `exact.py`).
"""
