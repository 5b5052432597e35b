"""passes of deplodock."""
