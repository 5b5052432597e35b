"""Chapter 1: the five levels of a program, and locations that connect them."""
