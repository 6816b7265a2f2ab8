"""Why a bench could not be run to its end: one sentence for whoever started it."""


class BenchError(Exception):
    """What is being measured did not work, so there is nothing to report."""
