"""Rooms: members on this instance, captions and their translations, commands of clients, upkeep."""
