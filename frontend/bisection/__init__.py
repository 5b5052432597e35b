"""Bisection: names the first part of the compiler whose results differ from PyTorch's.

| part | executed by | compared with |
|---|---|---|
| capture | PyTorch, at the torch level | the user's function |
| operators | the reference, each operator alone at the tensor level | PyTorch, on the same operands |
| passes | the reference, at the kernel level the simulator | PyTorch |
| the executor | the printed text, where it was asked for | PyTorch |

`search.py` decides which part is to blame. `operators.py` executes the torch level operator by operator, and
`eager_values.py` records the operators of the user's function.
"""
