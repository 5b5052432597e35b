"""`deplodock tune`: search for schedules that are faster than what the planner's model picks."""
