"""Chapter 4: fusion, as a set of values that are materialised."""
