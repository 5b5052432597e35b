"""The classes with targets: `benchmarks/suite.py classes`, with its options.

python benchmarks/targets.py --device cpu [--threads 1] [--only SUBSTRING] [--mode torch.compile]
python benchmarks/targets.py --predict
"""

import sys

from suite import main

if __name__ == "__main__":
    main(["classes", *sys.argv[1:]])
