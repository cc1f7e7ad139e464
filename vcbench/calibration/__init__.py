"""What is fitted once per model and then used by a compressor: its form, its file, its text."""
