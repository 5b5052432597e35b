"""Chapter 10: schedules and their predicted times."""
