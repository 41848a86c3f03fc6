"""The client for programs that block."""
