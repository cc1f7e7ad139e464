"""Function calls in the forms that models write them: read from answers, written into histories."""
