"""One topic instance: its records, its numbers, and the state that other rooms keep with it."""
