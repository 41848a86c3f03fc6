"""`topics generate`: files to run and watch a server, made from its settings, metrics and commands."""
