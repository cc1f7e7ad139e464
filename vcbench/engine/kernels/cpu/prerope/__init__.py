"""Attention over codes of keys from before their rotary embedding."""
