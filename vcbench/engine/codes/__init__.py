"""Caches of packed codes, and how entries become codes and back."""
