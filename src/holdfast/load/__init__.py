"""Load between owners, for real: what contracts are worth, and how many of them to make."""
