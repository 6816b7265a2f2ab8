"""What runs: one loop or one path a file."""
