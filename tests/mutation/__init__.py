"""Planted bugs: programs that are right, mutants of how they are compiled, and the checkers that should object."""
