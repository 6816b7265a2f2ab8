"""Previews: an open utterance is sent to one node while it is spoken, and the words that come back are shown.

    open utterance ─▶ FindNode ─▶ found(node) ─▶ Send, Send, Send … ─▶ ended by a cut, or without an utterance
                         ▲                         │ refused, node lost
                         └────── another node ─────┘

Best effort: nothing waits for a preview, and nothing that a preview does changes the job of its utterance.

Invariants: at most one preview of a session is open; audio is sent in order and from the beginning of the utterance,
each byte once per preview, on average at most one piece in `PIECE_S`; at most `MAX_NODES` nodes are tried for one
utterance. Words are shown only of the open preview, never older than the last, so none is shown after the cut. Words
that were shown are cleared once if their utterance ends without a job.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from random import Random

from dragoman.domain.fleet import Fleet, Node
from dragoman.domain.segmenter import OpenUtterance

PIECE_S = 0.2  # between two pieces of audio
EARLY_S = 0.02  # a piece may be so early: a chunk that arrives a moment before it is due needs no timer
MIN_PIECE_MS = 100
MIN_OPENING_MS = 300  # of audio, unless a voice detector has found speech: most quiet finals are shorter
PARTIAL_S = 0.25  # between two partials
MAX_NODES = 3  # tried for one utterance
RETRY_S = 2.0  # after no node was found
MAX_DRAWS = 8  # of nodes of other instances


# -- the node --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreviewAsk:
    src: str
    tgt: str
    lang_a: str | None = None
    lang_b: str | None = None
    turn_node: str | None = None  # where the turn is, or was previewed last
    excluded: Collection[str] = frozenset()  # refused it, or were lost


def choose_node(
    ask: PreviewAsk, fleet: Fleet, open_on: Callable[[str], int], instance: str, now: float, rng: Random
) -> Node | None:
    """The turn's node if it can preview one more; else one of this instance; else the least loaded elsewhere.

    `open_on`: how many previews a node has, as far as this instance knows. The job of the utterance will prefer the
    node, so it must be able to do the whole job.
    """
    pool = fleet.find(ask.src, ask.tgt, ask.lang_a, ask.lang_b)
    if pool is None:
        return None

    def able(node_ids: Iterable[str]) -> list[Node]:
        found = (fleet.get(node_id) for node_id in node_ids if node_id in pool and node_id not in ask.excluded)
        return [node for node in found if node is not None and _can_preview(node, fleet, open_on(node.id), now)]

    def load(node: Node) -> float:
        return open_on(node.id) / node.previews + fleet.load(node.id) / max(node.slots, 1)

    if ask.turn_node is not None and (found := able([ask.turn_node])):
        return found[0]
    if found := able(fleet.previewers(instance)):
        return min(found, key=load)
    elsewhere = fleet.previewers_elsewhere(instance)
    found = able(rng.sample(elsewhere, min(len(elsewhere), MAX_DRAWS)))
    return min(found, key=load) if found else None


def _can_preview(node: Node, fleet: Fleet, open_on_it: int, now: float) -> bool:
    return (
        open_on_it < node.previews
        and not node.draining
        and (node.ready is None or "asr" in node.ready)
        and not fleet.has_failed(node.id)
        and not fleet.cooling(node.id, "asr", now)
    )


# -- the audio -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenPreview:
    id: str
    node_id: str
    epoch: int
    instance: str  # of the node


@dataclass(frozen=True, slots=True)
class FindNode:
    """Choose a node and call `found`, or `not_found`."""

    utterance: OpenUtterance
    turn_node: str | None  # where the turn was previewed before
    excluded: frozenset[str]


@dataclass(frozen=True, slots=True)
class Send:
    """Send the audio of the open utterance from this byte on."""

    preview: OpenPreview
    seq: int
    start: int


@dataclass(frozen=True, slots=True)
class Ended:
    preview: OpenPreview | None  # to be closed; None: there was none, or not any more
    index: int
    shown_by: str = ""  # the preview whose words the client still shows, although no result will replace them

    @property
    def clears(self) -> bool:
        return bool(self.shown_by)


class How(Enum):
    """How an open utterance ended, or its preview."""

    CUT = auto()  # a job follows
    NOTHING = auto()  # no utterance
    STOPPED = auto()  # the session ended, moved, or lost its socket


class SessionPreview:
    """The preview of the open utterance of one session."""

    __slots__ = (
        "_began_at",
        "_index",
        "_last_node",
        "_last_number",
        "_min_opening_ms",
        "_preview",
        "_retry_at",
        "_sent",
        "_sent_at",
        "_seq",
        "_shown",
        "_shown_by",
        "_tried",
        "_unsent_at",
    )

    def __init__(self, min_opening_ms: int = MIN_OPENING_MS) -> None:
        self._min_opening_ms = min_opening_ms
        self._last_node: tuple[str, str] | None = None  # turn, and the node that previewed its last utterance
        self._forget_utterance()

    def _forget_utterance(self) -> None:
        self._preview: OpenPreview | None = None
        self._index = 0
        self._began_at: float | None = None
        self._tried: frozenset[str] = frozenset()
        self._retry_at = -inf
        self._shown = self._shown_by = ""
        self._unsent_at: float | None = None
        self._reset_pieces()

    def _reset_pieces(self) -> None:
        self._seq = self._sent = self._last_number = 0
        self._sent_at = -inf

    @property
    def preview(self) -> OpenPreview | None:
        return self._preview

    @property
    def index(self) -> int:
        """The index that the utterance will have."""
        return self._index

    def follow(self, utterance: OpenUtterance | None, now: float) -> FindNode | Send | None:
        """What to do now, with the utterance that is open now. Call it again after each answer to FindNode."""
        if utterance is None:
            return None
        if self._began_at is None:
            self._began_at, self._index = now - utterance.duration_ms / 1000, utterance.index
        if self._preview is not None:
            return self._piece(self._preview, utterance, now)
        ready = utterance.duration_ms >= self._min_opening_ms and now >= self._retry_at
        if not ready or len(self._tried) >= MAX_NODES:
            return None
        last = self._last_node
        turn_node = last[1] if last is not None and last[0] == utterance.turn_id else None
        return FindNode(utterance, turn_node, self._tried)

    def found(self, preview: OpenPreview) -> None:
        self._preview, self._tried = preview, self._tried | {preview.node_id}
        self._reset_pieces()

    def not_found(self, now: float) -> bool:
        """Returns whether this is the first time for this utterance."""
        first, self._retry_at = self._retry_at == -inf, now + RETRY_S
        return first

    def _piece(self, preview: OpenPreview, utterance: OpenUtterance, now: float) -> Send | None:
        due_at = self._sent_at + PIECE_S
        unsent_ms = utterance.duration_ms * (utterance.size - self._sent) / max(utterance.size, 1)
        self._unsent_at = due_at if unsent_ms >= MIN_PIECE_MS else None
        if self._unsent_at is None or now < due_at - EARLY_S:
            return None
        send = Send(preview, self._seq, self._sent)
        self._seq, self._sent, self._sent_at, self._unsent_at = self._seq + 1, utterance.size, max(now, due_at), None
        return send

    def deadline(self) -> float | None:
        """When audio that waits is due."""
        return self._unsent_at if self._preview is not None else None

    def ended(self, how: How, turn_id: str | None = None) -> Ended:
        """The utterance has ended, or the session has. `turn_id`: of the cut."""
        ended = Ended(self._preview, self._index, self._shown_by if self._shown and how is not How.CUT else "")
        if how is How.CUT and self._preview is not None and turn_id is not None:
            self._last_node = turn_id, self._preview.node_id
        self._forget_utterance()
        return ended

    # -- the words

    def partial(self, preview_id: str, number: int, text: str) -> bool:
        """Whether the client may see this text."""
        if self._preview is None or self._preview.id != preview_id or number <= self._last_number:
            return False
        self._last_number = number
        if text == self._shown:
            return False
        self._shown, self._shown_by = text, preview_id
        return True

    def lost(self, preview_id: str) -> OpenPreview | None:
        """The node refused the preview, gave it up or was lost: another node may have the utterance. Words that were
        shown stay until other words, or the result, replace them."""
        preview = self._preview
        if preview is None or preview.id != preview_id:
            return None
        self._preview = None
        return preview

    def spoken_for(self, now: float) -> float:
        """Seconds since the utterance began."""
        return now - self._began_at if self._began_at is not None else 0.0

    @property
    def has_shown(self) -> bool:
        return bool(self._shown)


# -- at the node's instance ------------------------------------------------------------------------


class PartialPace:
    """Numbers the partials of one preview, and lets at most one pass in `PARTIAL_S`: the latest."""

    __slots__ = ("_due_at", "_waiting", "number")

    def __init__(self) -> None:
        self.number = 0
        self._due_at = -inf
        self._waiting: str | None = None

    def offer(self, text: str, now: float) -> str | None:
        """The text if it may pass now; otherwise it waits until `deadline`, unless a later one replaces it."""
        self._waiting = text
        return self.poll(now)

    def poll(self, now: float) -> str | None:
        if self._waiting is None or now < self._due_at:
            return None
        text, self._waiting = self._waiting, None
        self._due_at = now + PARTIAL_S
        self.number += 1
        return text

    def deadline(self) -> float | None:
        return self._due_at if self._waiting is not None else None
