"""A complete compiler in six chapters: PyTorch in, CUDA and C++ out, on the dialects of deplodock.

Each chapter is one module with a function `compile`, which returns a program that runs. A chapter adds one step to the
compiler of the chapter before it. `docs/learn/small_compiler` explains the chapters.
"""
