"""How a loop nest becomes a block's program over tiles: the parts of `lower-loop-to-tile`."""
