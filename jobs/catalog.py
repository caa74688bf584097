"""``spark-submit jobs/catalog.py STORE …``: the options of ``reput catalog``."""

import sys

try:
    from reput.cli import main
except (ImportError, AttributeError, TypeError, SyntaxError) as error:  # 1 would say that it is done
    found = f"expected one with reput, found {sys.executable}: {error}"
    sys.stderr.write(f"reput: this Python can't load reput; {found}. Set PYSPARK_PYTHON (docs/cluster.md)\n")
    raise SystemExit(2) from None

if __name__ == "__main__":
    main(["catalog", *sys.argv[1:]])
