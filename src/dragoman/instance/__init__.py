"""One server process: its services, its ports, its start and its end."""
