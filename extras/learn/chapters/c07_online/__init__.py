"""Chapter 7: reductions that use the results of other reductions, computed chunk by chunk."""
