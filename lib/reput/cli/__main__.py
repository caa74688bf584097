"""``python -m reput.cli``."""

from reput.cli.app import main

main()
