"""What can go wrong with an embedded server: every message is one sentence that says what to change."""


class EngineError(Exception):
    """The server cannot run; `str()` is for the operator."""


class ServerEnded(EngineError):
    """The server process ended by itself; `log` holds the last lines it wrote."""

    def __init__(self, sentence: str, log: str) -> None:
        super().__init__(sentence)
        self.log = log

    @property
    def port_was_taken(self) -> bool:
        return "already in use" in self.log
