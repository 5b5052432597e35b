CAUGHT = {
    "never fires": False,
    "ignores differences": False,
    "replaces x + 0.0 by x, which is wrong for -0.0": False,
    "replaces 0.0 - x by x": True,
    "replaces -0.0 + x by -0.0": True,
}
