# True for each fault of fold-plus-zero that `dl-opt --check-each` catches with random inputs.
CAUGHT = {
    "never fires": ...,
    "ignores differences": ...,
    "replaces x + 0.0 by x, which is wrong for -0.0": ...,
    "replaces 0.0 - x by x": ...,
    "replaces -0.0 + x by -0.0": ...,
}
