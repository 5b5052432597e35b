"""Planning for the cores of a CPU: the space of schedules, the checks, and the cost model."""
