"""Compiled programs on disk."""
