"""Figures from records alone."""
