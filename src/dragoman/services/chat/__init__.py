"""What serves chat clients: accounts, connections, sending, delivering, saving."""
