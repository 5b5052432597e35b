"""Times of operators and networks on the CPU, compared with PyTorch and other runtimes."""
