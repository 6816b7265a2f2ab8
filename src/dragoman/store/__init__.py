"""Redis: the connection, the scripts, the data model, and one module a concern."""
