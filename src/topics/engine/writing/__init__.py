"""How records get into a topic."""
