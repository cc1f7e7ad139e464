"""What can answer requests."""
