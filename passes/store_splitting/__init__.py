"""How results that are stored part by part are computed part by part: for tile-split-stores."""
