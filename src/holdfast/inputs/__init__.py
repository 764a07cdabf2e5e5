"""Ready-made inputs: each takes rows from somewhere and feeds a `Producer`. One module per place they come from."""
