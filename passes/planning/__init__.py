"""Planning of schedules: `plan-schedules`, the enumeration of candidates, their checks, and the cost models."""
