"""CUDA back end: prints modules at the kernel level as CUDA C++, and compiles and runs them."""
