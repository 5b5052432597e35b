"""Chapter 3: index maps."""
