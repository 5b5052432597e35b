"""Chapter 5: patterns that rewrite programs."""
