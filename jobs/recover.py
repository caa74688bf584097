"""``spark-submit jobs/recover.py STORE --apply …``: the options of ``reput recover``."""

import sys

from reput.cli import main

if __name__ == "__main__":
    main(["recover", *sys.argv[1:]])
