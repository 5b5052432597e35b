"""Comparison of search policies: algorithms that choose the next schedule to measure."""
