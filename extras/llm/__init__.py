"""Language models of the package transformers: compiling, tuning, and generating text."""
