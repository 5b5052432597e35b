"""Chapter 2: programs at the tensor level, written by hand."""
