"""``spark-submit jobs/check.py STORE … …``: the options of ``reput check``."""

import sys

from reput.cli import main

if __name__ == "__main__":
    main(["check", *sys.argv[1:]])
