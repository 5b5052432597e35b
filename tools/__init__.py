"""tools of deplodock."""
