# judged: it differs from the element by [0, 1]
elements = {
    (0, 0, 0): [0, 0],
    (3, 1, 0): [0, 7],
    (2, 24, 1): [11, 2],
    (5, 0, 0): [4, 0],
}

holders = {
    (0, 20): (0, 5, 0),
    (12, 1): (5, 0, 1),
}
