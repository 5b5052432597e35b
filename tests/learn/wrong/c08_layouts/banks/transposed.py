# judged: writing a row needs 32 wavefronts where 1 is enough
offset = [[1, 0], [2, 0], [4, 0], [8, 0], [16, 0], [0, 1], [0, 2], [0, 4], [0, 8], [0, 16]]
