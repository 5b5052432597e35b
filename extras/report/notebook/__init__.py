"""Programs in notebooks: HTML of programs, texts and kernels, and `%%deplodock` in IPython.

`display.py` has the HTML of values, `magic.py` the extension that `%load_ext deplodock` loads, and `cells.py` the
program in a cell. Only the code that runs in a shell imports IPython.
"""
