"""frontend of deplodock."""
