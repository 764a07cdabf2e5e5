"""What an application promises, what a failure would do to it and what it costs, before anything runs."""
