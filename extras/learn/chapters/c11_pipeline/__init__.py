"""Chapter 11: pipelines of asynchronous copies."""
