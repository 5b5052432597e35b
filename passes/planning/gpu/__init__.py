"""Planning for GPUs: the space of schedules, the checks, and the cost model."""
