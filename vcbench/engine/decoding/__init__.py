"""From prefilled requests to tokens: rounds of draft and verification, and when they end."""
