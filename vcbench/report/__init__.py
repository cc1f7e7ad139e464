"""Tables and curves of runs."""
