"""The command line, as operators and programs use it."""
