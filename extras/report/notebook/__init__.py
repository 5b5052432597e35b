"""Programs in notebooks: HTML of programs, texts and kernels, and `%%deplodock` in IPython.

`display.py` has the HTML that a cell shows for its value, `magic.py` what `%load_ext deplodock` adds to a shell, and
`cells.py` the program in a cell. Only the code that runs in a shell imports IPython.
"""
