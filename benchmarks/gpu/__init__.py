"""Host time of calls, and the error of the planning model against measured times."""
