"""``spark-submit jobs/tail.py STORE --out DIR …``: the options of ``reput tail``."""

import sys

from reput.cli import main

if __name__ == "__main__":
    main(["tail", *sys.argv[1:]])
