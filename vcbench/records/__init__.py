"""Append-only records of runs, and reading them back."""
