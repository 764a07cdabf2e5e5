"""One module per published number: each compares with a peer or a limit in one run and ends with a line of JSON."""
