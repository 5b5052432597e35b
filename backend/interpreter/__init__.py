"""Reference interpreter of the tensor, loop and tile levels: one file per dialect, and one for the payload.

A value is a NumPy array that *broadcasts to* the shape of its type: the array has size 1 along an index that the value
does not depend on. For example, the bias `b[j]` in a nest over `i, j` is an array of shape `[1, n]`.

The scalar domain sets the representation of floats (`domains.py`, `exact.py`): their element type, float64 or residues.
"""
