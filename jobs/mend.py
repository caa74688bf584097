"""``spark-submit jobs/mend.py STORE --apply …``: the options of ``reput mend``."""

import sys

from reput.cli import main

if __name__ == "__main__":
    main(["mend", *sys.argv[1:]])
