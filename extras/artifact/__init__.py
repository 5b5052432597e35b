"""Artifacts: compiled programs that are saved to a folder and loaded without compilation."""
