"""Operators and networks on the CPU."""
