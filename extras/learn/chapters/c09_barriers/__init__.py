"""Chapter 9: barriers between accesses of shared memory."""
