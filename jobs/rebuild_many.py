"""``spark-submit jobs/rebuild_many.py STORE... --out-root DIR …``: the options of ``reput rebuild-many``."""

import sys

from reput.cli import main

if __name__ == "__main__":
    main(["rebuild-many", *sys.argv[1:]])
