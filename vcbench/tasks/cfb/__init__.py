"""ComplexFuncBench: its conversations, its rules for comparing calls, and its loop over recorded observations."""
