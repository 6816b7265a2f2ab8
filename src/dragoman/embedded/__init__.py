"""The private Redis of a server for which no Redis is configured.

`binary` finds a server program, `datadir` locks its data directory, `engine` runs it and sends it commands, and
`parent_watch` ends a child process when its parent ends. The package knows nothing of Dragoman.
"""
