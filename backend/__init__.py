"""backend of deplodock."""
