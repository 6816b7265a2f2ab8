"""The private Redis of an instance that was given none.

`binary` finds a server, `datadir` keeps its directory for one server alone, `engine` runs one,
`parent_watch` ends every process started here when the process that started it ends. Knows nothing of Dragoman.
"""
