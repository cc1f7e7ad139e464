"""A run: what it consists of, what it needs, how it is carried out and recorded."""
