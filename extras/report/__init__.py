"""`--report FILE.html` of `compile`, `run` and `tune`, and `report` of a compiled function: one page about a program.

The page is one file without references to others: text, SVG, style and script are inside. `program.py` has the facts,
`sections.py` the list of sections, each in a file of its own, and `write.py` puts them together. `notebook/` shows
programs and texts in notebooks.
"""
