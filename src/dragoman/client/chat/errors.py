"""What can go wrong with a chat, in words: one tree, each with the reason a program can compare.

`reason` is a word of the protocol (`kicked`, `invalid_token`, `body_too_long`) or one of those below.
"""

from dragoman.protocol.chat import Reason

UNREACHABLE = "unreachable"
CLOSED = "closed"
FORGOTTEN = "forgotten"


class ChatError(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{message} ({reason})")
        self.reason = reason
        self.message = message


class Unreachable(ChatError):
    """No server answered, or none let us in for too long."""

    def __init__(self, message: str) -> None:
        super().__init__(UNREACHABLE, message)


class Refused(ChatError):
    """The server knows us and says no: a wrong password, a token it does not take, a session that is over."""


class Kicked(ChatError):
    """The same user came in elsewhere; coming back would only throw the other one out."""

    def __init__(self) -> None:
        super().__init__(Reason.KICKED, "this user is connected elsewhere now")


class SendFailed(ChatError):
    """A message was refused, or the server gave it up (`save_failed`)."""


class ChatOver(ChatError):
    """The chat ended, or the message was forgotten, before this was known. It may still happen."""

    def __init__(self, reason: str = CLOSED, message: str = "the chat is closed") -> None:
        super().__init__(reason, message)
