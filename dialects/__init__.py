"""dialects of deplodock."""
