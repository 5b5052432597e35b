"""How `plan-schedules` decides: facts about a nest, and one file for each family of plans."""
