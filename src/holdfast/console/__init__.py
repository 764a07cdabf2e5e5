"""What people look at: the picture of a failure as a client saw it, on the terminal and as one HTML file."""
