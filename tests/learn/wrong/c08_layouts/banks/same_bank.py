# judged: reading a column needs 16 wavefronts
offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [1, 1], [2, 1], [4, 1], [8, 1], [16, 1]]
