# A tile of 32 x 32 f32 in shared memory. A warp writes it row by row, and reads it column by column.
# A base is the element [row, column] that a bit of the offset contributes. This is row-major order:
columns = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]]  # bits 0 to 4 of the offset
rows = [[1, 0], [2, 0], [4, 0], [8, 0], [16, 0]]  # bits 5 to 9
# ... Change some bases, so that neither a row nor a column has a bank conflict.
offset = columns + rows
