"""Which token follows a row of logits."""
