"""What the task `swebench-lite` is made of: its prompts, how patches are read and judged, and who runs their tests."""
