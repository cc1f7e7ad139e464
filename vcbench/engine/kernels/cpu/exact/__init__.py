"""Attention over exact entries in pages."""
