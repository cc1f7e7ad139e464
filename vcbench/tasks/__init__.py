"""Prompts, as token ids, and the scoring of their answers."""
