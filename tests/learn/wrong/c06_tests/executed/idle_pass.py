# judged: does not catch the pass that never fires: a pass that does nothing keeps the results
CAUGHT = {
    "never fires": True,
    "ignores differences": False,
    "replaces x + 0.0 by x, which is wrong for -0.0": False,
    "replaces 0.0 - x by x": True,
    "replaces -0.0 + x by -0.0": True,
}
