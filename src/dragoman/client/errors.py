"""What can go wrong with a session, in words: one tree, each with a code a program can compare."""

from dragoman.protocol.codes import ErrorCode


class SessionError(Exception):
    """`code` is one of the protocol's, the name of a close code, or one of those below; `index` the utterance, if one
    is concerned."""

    def __init__(self, code: str, message: str, index: int | None = None) -> None:
        super().__init__(f"{message} ({code})" if index is None else f"utterance {index}: {message} ({code})")
        self.code = code
        self.message = message
        self.index = index


class Unreachable(SessionError):
    """No server answered, or none took the session for too long."""

    def __init__(self, message: str) -> None:
        super().__init__("UNREACHABLE", message)


class SessionLost(SessionError):
    """The session is gone at the server and cannot be resumed."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_SESSION, message)


class SessionOver(SessionError):
    """Something was said after the session had been closed."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.SESSION_CLOSED, "the session is closed")
