"""The parts of `lower-tile-to-kernel`: index arithmetic, accesses, shared memory, contractions, the host program."""
