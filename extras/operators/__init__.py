"""Decompositions of the operators that other Python packages register with PyTorch, one file for each package.

`pyproject.toml` declares each table as an entry point whose name is the namespace of the operators. A file is imported
when a program has an operator of its namespace. It imports neither the package nor its operators.
"""
