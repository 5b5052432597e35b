"""Reference of operations, attributes and types: `dl-opt --help-op`, and the pages that `docs/dialect_pages.py` writes.

`definitions.py` reads the definitions and docstrings, `constraints.py` has the texts of constraints, traits and syntax,
`uses.py` finds the passes that create or match an operation, and `help_text.py` writes the text of `--help-op`.
"""
