"""Whether an output is still full KV's: verdicts, guards and reports, from records alone."""
