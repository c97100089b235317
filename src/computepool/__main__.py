"""`python -m computepool`: the command line."""

from computepool.cli.main import main

main()
