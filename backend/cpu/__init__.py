"""Programs for the cores of a CPU: printed as C++, compiled by the host compiler, called on the memory of tensors."""
