"""What each endpoint does with a request's body."""
