"""`python -m topics` is the command `topics`."""

from topics.cli.entry import main

main()
