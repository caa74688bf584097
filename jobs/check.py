"""``spark-submit jobs/check.py STORE … …``: the options of ``reput check``."""

import sys

try:
    from reput.cli import main
except (ImportError, AttributeError, TypeError, SyntaxError) as error:  # 1 would say that it is done
    found = f"expected one with reput, found {sys.executable}: {error}"
    sys.stderr.write(f"reput: this Python can't load reput; {found}. Set PYSPARK_PYTHON (docs/cluster.md)\n")
    raise SystemExit(2) from None

if __name__ == "__main__":
    main(["check", *sys.argv[1:]])
