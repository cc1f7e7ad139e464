"""The data sets of the task `longform`: what a row asks, and what an answer to it scores."""
