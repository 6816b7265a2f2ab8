"""The private Redis of an instance that was given none, and the Redis servers and Clusters of the tests.

`binary` finds a server, `datadir` keeps its directory for one server alone, `engine` runs one, `cluster` runs six,
`lifeline` sees to it that nothing started here outlives the process that started it. Knows nothing of Dragoman.
"""
