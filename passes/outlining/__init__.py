"""Finding parts of programs that are equal."""
