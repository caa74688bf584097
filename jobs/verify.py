"""``spark-submit jobs/verify.py STORE …``: the options of ``reput verify``."""

import sys

from reput.cli import main

if __name__ == "__main__":
    main(["verify", *sys.argv[1:]])
