"""One handler per operation of the HTTP interface."""
