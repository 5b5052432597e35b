"""The parts of `tile-split-masked-loops`: where a mask has one answer, what that is worth, what is left without it."""
