"""Printing of C++ that CUDA kernels and CPU kernels share: expressions, statements, names and device functions."""
