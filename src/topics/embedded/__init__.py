"""The log inside a Python program."""
