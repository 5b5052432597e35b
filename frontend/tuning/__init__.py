"""`deplodock tune`: search for schedules that are faster than the picks of the planner's model."""
