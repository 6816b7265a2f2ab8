"""Who may create a chat account, and with which password.

On a laptop (loopback without a secret) every name has a password that everybody can guess, so that chat can be tried
without typing one. Anywhere else such a password creates no account and opens none.
"""

from dataclasses import dataclass
from typing import Literal

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
