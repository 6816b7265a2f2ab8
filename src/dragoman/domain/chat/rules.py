"""Which chat frames the server accepts, which words it masks, and who may create an account.

`check` looks at one message, in the order clients rely on: if several fields are missing, it names the first. How many
frames a connection may send is in `domain/limits/frames.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from dragoman.protocol.chat import MAX_BODY_UNITS, MAX_CLIENT_MSG_ID, Frame, Reason

VIOLATIONS: Final = frozenset({Reason.BAD_JSON, Reason.MISSING_TYPE, Reason.NOT_IMPLEMENTED})

_LATER: Final = ("GROUP_", "CALL_")


def check(frame: Frame, me: int) -> Reason | None:
    """Why this SINGLE_CHAT of `me` is not taken; None: it is.

    A clientMsgId that is too long counts as none: it could not be kept, and cutting it would make two messages one.
    """
    if not frame.clientMsgId or len(frame.clientMsgId) > MAX_CLIENT_MSG_ID:
        return Reason.MISSING_MSG_ID
    if frame.to is None:
        return Reason.MISSING_TO
    if not frame.body:
        return Reason.MISSING_BODY
    if utf16_units(frame.body) > MAX_BODY_UNITS:
        return Reason.BODY_TOO_LONG
    if frame.to == me:
        return Reason.CANNOT_SEND_TO_SELF
    return None


def utf16_units(text: str) -> int:
    """The length of a text as browsers and JVMs count it: characters beyond the first plane are two."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def is_planned(type_: str) -> bool:
    """Whether clients may know this type already: it is `not_implemented`, but no violation."""
    return type_.startswith(_LATER) or type_ == "FRIEND_REQUEST"


# -- word filter -----------------------------------------------------------------------------------
#
# Listed words become ***, whatever their case and whatever stands around them.
#
# A word is found inside others too: many languages put nothing between words. Where several begin at the same place the
# longest wins. The words are a tree by letters, walked from each place of the text: what a message costs does not grow
# with the list, as it would with one regular expression of all words.

MASK: Final = "***"

_Tree = dict[str, "_Tree"]
_END: Final = ""  # as a key: a word ends here


class WordFilter:
    def __init__(self, words: Iterable[str] = ()) -> None:
        self._tree: _Tree = {}
        for word in words:
            at = self._tree
            for letter in _lower(word.strip()):
                at = at.setdefault(letter, {})
            at[_END] = {}
        self._tree.pop(_END, None)  # of empty words

    def clean(self, body: str) -> str:
        """The body with `***` for each listed word; the same object where there is none."""
        if not self._tree:
            return body
        text, tree = _lower(body), self._tree
        parts: list[str] = []
        end = 0
        for at, letter in enumerate(text):
            if letter in tree and at >= end and (stop := self._longest(text, at)):
                parts += (body[end:at], MASK)
                end = stop
        return "".join((*parts, body[end:])) if parts else body

    def _longest(self, text: str, at: int) -> int:
        """Where the longest word that begins here ends; 0: none does."""
        tree, stop = self._tree, 0
        while at < len(text) and (below := tree.get(text[at])) is not None:
            tree, at = below, at + 1
            if _END in tree:
                stop = at
        return stop


def _lower(text: str) -> str:
    """In lower case, letter by letter, so that places in it are places in `text`."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in text)


# -- registration ----------------------------------------------------------------------------------
#
# Who may create a chat account, and with which password.
#
# On a laptop (loopback without a secret) every name has a password that everybody can guess, so that chat can be tried
# without typing one. Anywhere else such a password creates no account and opens none.


Policy = Literal["open", "closed", "invite"]

WRONG = "wrong username or password"
_REFUSALS: dict[Policy, str] = {
    "open": WRONG,
    "closed": f"{WRONG}; here only an operator creates accounts (chat.registration is closed)",
    "invite": f"{WRONG}; a new account needs an invite code of an operator (chat.registration is invite)",
}


def well_known(name: str) -> str:
    """The password that the page and `dragoman chat` use where none is given, on a laptop."""
    return f"{name}-of-this-machine"


@dataclass(frozen=True, slots=True)
class Registration:
    """`private`: only this machine can connect, and needs no token."""

    policy: Policy = "open"
    private: bool = True
    min_password_length: int = 10

    @property
    def refusal(self) -> str:
        """The answer to a wrong password and to an unknown name: it does not tell which names exist."""
        return _REFUSALS[self.policy]

    def is_guessable(self, name: str, password: str) -> bool:
        """Whether this password opens nothing here, even if it is the right one."""
        return not self.private and password == well_known(name)

    def objection(self, name: str, password: str) -> str | None:
        """Why a new account may not have this password; None if it may."""
        if self.private:
            return None
        if len(password) < self.min_password_length:
            return f"a new password needs at least {self.min_password_length} characters"
        if password == well_known(name) or password.casefold() == name.casefold():
            return "everybody can guess this password: choose another"
        return None
