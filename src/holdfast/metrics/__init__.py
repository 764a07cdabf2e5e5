"""Numbers of a running host for Prometheus: which there are (`families`), and one scrape of them (`sheet`)."""
