# judged: row and column are exchanged
elements = {
    (0, 0, 0): [0, 0],
    (3, 1, 0): [7, 0],
    (2, 24, 1): [11, 2],
    (5, 0, 0): [4, 0],
}

holders = {
    (0, 20): (0, 5, 0),
    (12, 1): (4, 0, 1),
}
