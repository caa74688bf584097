"""``spark-submit jobs/verify_many.py STORE... …``: the options of ``reput verify-many``."""

import sys

from reput.cli import main

if __name__ == "__main__":
    main(["verify-many", *sys.argv[1:]])
