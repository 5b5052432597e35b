"""The 84 kernel shapes: `benchmarks/suite.py seed84`, with its options.

python benchmarks/seed84.py --device cpu [--threads 1] [--dtype f32] [--only SUBSTRING] [--mode torch.compile] [--check]
"""

import sys

from suite import main

if __name__ == "__main__":
    main(["seed84", *sys.argv[1:]])
