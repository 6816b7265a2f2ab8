"""What developers use and a server does not need: benches, `verify`, servers for tests, helpers of the Makefile."""
