"""``spark-submit jobs/catalog.py STORE …``: the options of ``reput catalog``."""

import sys

from reput.cli import main

if __name__ == "__main__":
    main(["catalog", *sys.argv[1:]])
