"""Rules by families of operators. Every module of this folder is imported before the first model is read."""
