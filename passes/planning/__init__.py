"""How `plan-schedules` decides: info about a nest, and one file for each family of plans."""
