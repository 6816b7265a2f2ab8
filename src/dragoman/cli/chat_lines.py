"""What a terminal chat shows: one line a message, with marks that say how far ours are. Pure.

    ·      sent             ✓      accepted: the server has it          ✓✓     saved: it is in the database
    ✓✓ →   delivered        ✓✓ ●   read                                 ✗      refused, with the reason

*Saved* and *delivered* are told apart, since either may come first.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dragoman.visible import visible

if TYPE_CHECKING:
    from dragoman.client.chat import Sent, StoredMessage

MARKS_WIDTH = 5
UNICODE = {"sent": "·", "accepted": "✓", "saved": "✓✓", "delivered": "→", "read": "●", "failed": "✗"}
ASCII = {"sent": ".", "accepted": "+", "saved": "++", "delivered": ">", "read": "*", "failed": "x"}
NOTE = "-"


@dataclass(slots=True)
class Line:
    """`who` says `text`; `sent` is there when it is a message of ours from now."""

    who: str
    text: str
    at: str = ""
    sent: "Sent | None" = None
    marks: str = ""  # of what was said before we came

    @property
    def settled(self) -> bool:
        """Nothing about it will change."""
        return self.sent is None or bool(self.sent.read) or self.sent.failed is not None


def marks_of(sent: "Sent", signs: dict[str, str]) -> str:
    if sent.failed is not None:
        return signs["failed"]
    kept = "saved" if sent.saved else "accepted" if sent.accepted else "sent"
    theirs = "read" if sent.read else "delivered" if sent.delivered else ""
    return f"{signs[kept]:<2} {signs[theirs]}" if theirs else signs[kept]


def legend(signs: dict[str, str]) -> str:
    return "  ".join(f"{sign} {word}" for word, sign in signs.items())


def printed(line: Line, signs: dict[str, str]) -> str:
    """As one line of text, however long."""
    marks = line.marks if line.sent is None else marks_of(line.sent, signs)
    reason = f"  ({line.sent.failed})" if line.sent is not None and line.sent.failed else ""
    who = f"{line.who}: " if line.who != NOTE else ""
    text = visible(" ".join(f"{who}{line.text}{reason}".splitlines()))
    return f"{marks:<{MARKS_WIDTH}} {line.at + ' ' if line.at else ''}{text}"


def said_before(said: "StoredMessage", me: int, my_name: str, their_name: str, signs: dict[str, str]) -> Line:
    mine = said.from_user == me
    marks = ""
    if mine:
        theirs = {"DELIVERED": "delivered", "READ": "read"}.get(said.status, "")
        marks = f"{signs['saved']:<2} {signs[theirs]}" if theirs else signs["saved"]
    return Line(my_name if mine else their_name, said.body, clock(said.created_at), marks=marks)


def clock(moment: Any) -> str:
    """Of a time in ms; other ways of telling one are shown as they are, to the minute."""
    if isinstance(moment, int | float):
        return time.strftime("%H:%M", time.localtime(moment / 1000))
    _, _, told = str(moment or "").replace("T", " ").partition(" ")
    return told[:5]


def now() -> str:
    return time.strftime("%H:%M")
