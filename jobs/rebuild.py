"""``spark-submit jobs/rebuild.py STORE … --out DIR …``: the options of ``reput rebuild``."""

import sys

from reput.cli import main

if __name__ == "__main__":
    main(["rebuild", *sys.argv[1:]])
