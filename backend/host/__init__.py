"""Host side of all backends: launch plans, memory, compilers and their cache, calls, and timing."""
