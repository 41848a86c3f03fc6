"""Typed columns: JSON text becomes values of Spark's types, and what does not fit is kept as text."""
