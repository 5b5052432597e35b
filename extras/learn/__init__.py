"""`deplodock learn`: a tutorial whose exercises are judged by running the answers.

The pages are in `docs/learn/`. Each chapter has a package in `chapters/` with its exercises: a template with a hole, a
solution, hints and a judge. A judge runs in a process of its own with limits (`host.py`, `confinement.py`).
"""
