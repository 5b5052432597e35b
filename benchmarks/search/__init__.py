"""Policies of the search for schedules."""
