"""The evaluation of the five texts, repeated: every figure and table, theirs beside ours, on one page."""
