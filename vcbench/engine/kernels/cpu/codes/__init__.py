"""Attention over packed codes."""
