"""The status page at GET /. `status` combines its parts into one file."""
