"""Chapter 12: an operation of the reader, from PyTorch to a kernel."""
