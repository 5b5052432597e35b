"""The host: the plan of launches, memory, compilers and their cache, calls and times."""
