"""Printing the kernel dialect as CUDA C++."""
