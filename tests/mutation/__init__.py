"""Mutation tests: plant bugs in the compiler or in its output, and expect that a checker detects each of them.

A *mutant* is a planted bug. A *subject* is a correct program in whose compilation bugs are planted. The checkers are
verifiers, the simulator, the exact domain of the interpreter, comparisons in floats, and the emulator.
"""
