"""C++ as CUDA and the cores of a CPU have it in common: expressions, statements, names, and the functions they call."""
