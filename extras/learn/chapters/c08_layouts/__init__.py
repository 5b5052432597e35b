"""Chapter 8: layouts of tiles in registers and in shared memory."""
