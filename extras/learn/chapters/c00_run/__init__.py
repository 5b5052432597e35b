"""Chapter 0: a program is compiled and run, and its work is counted."""
