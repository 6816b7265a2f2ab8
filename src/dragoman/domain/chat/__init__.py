"""Chat, decided without I/O: ids of messages, what may be sent, and how much of it."""
