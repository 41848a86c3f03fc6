"""What `topics import` is made of: the logs that it reads, and how it writes each entry once."""
