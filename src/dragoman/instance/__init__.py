"""One server process: its parts, its doors, its life."""
