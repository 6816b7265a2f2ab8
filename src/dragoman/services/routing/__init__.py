"""Messages between instances: inboxes, their handlers, and announcements."""
