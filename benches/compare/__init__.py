"""The same failure, side by side: one of three inputs falls silent for 20 s and comes back (`make compare`)."""
