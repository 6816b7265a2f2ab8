"""Where a job goes: one node, or a reason to wait.

The choice is made on the local view and confirmed by the reservation in Redis, which alone knows the slots. A refused
candidate is in `refused` the next time and is not chosen again. A job whose turn has a node gets that node if it is
connected and passes every filter, even beyond its slots by `turn_overcommit`; otherwise it is placed freely.

Free placement draws random nodes of the pool until two good ones can take the job, and takes the best of those drawn:
nearly as even as comparing all of them, at the cost of two. `_flaws` are what makes a node a second choice, the worst
first; among equals the node with more free slots wins. A full node is marked in the view and not drawn again until a
slot is released. If the draws find no node, the free part of the pool is scanned.

The node that previewed the utterance comes before drawn ones, if it has a free slot: it may reuse what it recognised.

If the listener wants audio, nodes that have a voice for the target language come first. If none of them can take the
job now, any node of the pool may: a translation without audio is better than none.

A text job goes to a node that serves its pair by text. One that `yields` leaves speech a free slot on each node that
also serves speech; on a node with one slot it runs only while no speech waits for a node.

A turn is one uninterrupted stretch of speech towards one language, kept on one node. The first job of a turn that finds
a node binds the turn to it, once. Later jobs get that node if they can; otherwise they are placed freely and bind
nothing. A cut that is a whole turn of its own binds nothing. There is no TTL, no second field, and no inheritance from
one turn to the next. The segmenter decides where turns begin and end; the owner of the session keeps the `Turn`.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum, auto
from math import inf
from random import Random

from dragoman.domain.fleet import VOICE, Fleet, Node
from dragoman.domain.pool import Pool


class AffinityResult(StrEnum):
    HIT = auto()
    FIRST = auto()  # the turn continues and has no node yet
    OFFLINE = auto()
    NOT_IN_POOL = auto()  # connected, but some filter of this job refuses it
    FULL = auto()  # beyond its slots and the overcommit


def should_bind_job_to_node(begins_turn: bool, ends_turn: bool) -> bool:
    """Whether placing this job binds its turn: it is the first that found a node, and more of the turn may follow."""
    return begins_turn and not ends_turn


@dataclass(slots=True)
class Turn:
    id: str
    node_id: str | None = None
    ended: bool = False

    def placed(self, node_id: str, ends_turn: bool) -> bool:
        """A job of the turn has a node. True: this binds the turn, to be written before the next job is placed."""
        if not should_bind_job_to_node(self.node_id is None and not self.ended, ends_turn):
            return False
        self.node_id = node_id
        return True

    def end(self) -> None:
        """The last job of the turn was placed: later jobs are placed freely."""
        self.ended = True
        self.node_id = None


def affinity(*, connected: bool, eligible: bool, has_room: bool) -> AffinityResult:
    """Whether a later job gets the turn's node. Without a hit it is placed freely."""
    if not connected:
        return AffinityResult.OFFLINE
    if not eligible:
        return AffinityResult.NOT_IN_POOL
    return AffinityResult.HIT if has_room else AffinityResult.FULL


MAX_DRAWS = 8
MAX_NAMES = 8


class NoNode(StrEnum):
    NO_NODE_IN_POOL = "no node in pool"
    ALL_FULL = "all full"
    ALL_COOLING_DOWN = "all cooling down"


class Obstacle(StrEnum):
    """Why a node of the pool cannot have the job."""

    DRAINING = auto()
    NOT_READY = auto()
    SEEN = auto()  # it had this job before
    COOLING_DOWN = auto()  # a model is missing there
    FAILING = auto()  # it failed several jobs in a row, and is paused
    REFUSED = auto()
    KEPT_FREE = auto()  # its last free slot is left to speech
    FULL = auto()


_NO_SLOT = frozenset({Obstacle.REFUSED, Obstacle.KEPT_FREE, Obstacle.FULL})
_COOL = frozenset({Obstacle.COOLING_DOWN, Obstacle.FAILING})


@dataclass(slots=True)
class Ask:
    src: str
    tgt: str
    lang_a: str | None = None
    lang_b: str | None = None
    needs: frozenset[str] = frozenset()  # service types that the node must be ready for
    voice: bool = False  # the result should be spoken
    turn_node: str | None = None
    preview_node: str | None = None  # that previewed the utterance
    turn_bound: bool = False  # of a turn of several jobs; False for a cut that is a whole turn
    seen: frozenset[str] = frozenset()  # nodes that had this job
    failed: frozenset[str] = frozenset()  # of these, nodes that failed it
    later: frozenset[str] = frozenset()  # nodes that had a later index of the session: old ones do not translate then
    default_slots: int = 4
    turn_overcommit: int = 4
    text: bool = False  # a text job
    yields: bool = False  # it leaves a free slot to speech
    speech_waits: bool = False  # some job of speech waits for a node


@dataclass(slots=True)
class Receipt:
    """What a placement considered, recorded with the job. `counts` and `names` are set only if no node was found."""

    pool: int
    drawn: list[str] = field(default_factory=list)
    chosen: str | None = None
    affinity: AffinityResult | None = None
    counts: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    text_only: bool = False  # audio is wanted, and the chosen node is not known to speak the language
    previewed: bool = False  # the chosen node has heard the utterance while it was spoken


@dataclass(slots=True)
class Assign:
    node_id: str
    epoch: int
    limit: int  # the reservation is refused at this many
    affinity: AffinityResult | None
    receipt: Receipt
    text_only: bool = False  # audio is wanted, and the node says that it has none
    kept_free: int = 0  # slots that the limit leaves to speech


@dataclass(slots=True)
class Wait:
    reason: NoNode
    receipt: Receipt
    until: float = inf  # when the first node has cooled down

    def why(self, now: float) -> str:
        """The reason, as the client reads it."""
        if self.reason is not NoNode.ALL_COOLING_DOWN:
            return str(self.reason)
        return f"{self.reason}, the first for another {max(self.until - now, 0):.0f} s"


def select_node(
    ask: Ask, fleet: Fleet, now: float, rng: Random, instance: str, refused: Container[str] = ()
) -> Assign | Wait:
    return _Placement(ask, fleet, now, rng, instance, refused).select()


@dataclass(slots=True)
class _Placement:
    ask: Ask
    fleet: Fleet
    now: float
    rng: Random
    instance: str
    refused: Container[str]
    drawn: list[str] = field(default_factory=list)
    cool_at: float = inf  # when the first of the nodes that cool down is back

    def select(self) -> Assign | Wait:
        ask, fleet = self.ask, self.fleet
        fleet.expire_refusals(self.now)
        pool = self._pool()
        by_turn = AffinityResult.FIRST if ask.turn_bound else None
        if ask.turn_node is not None:
            mine = fleet.get(ask.turn_node)
            by_turn = self._affinity(mine, pool)
            if mine is not None and by_turn is AffinityResult.HIT:
                return self._assign(mine, ask.turn_overcommit, by_turn, pool)
        if ask.voice and (found := self._find(self._pool(voice=True))[0]):
            return self._assign(self._best(found), 0, by_turn, pool)
        found, counts, names = self._find(pool)
        if found := found or self._nodes_that_had_it(pool):
            return self._assign(self._best(found), 0, by_turn, pool)
        return Wait(_reason(counts), Receipt(len(pool), self.drawn, None, by_turn, counts, names), self.cool_at)

    def _affinity(self, node: Node | None, pool: Pool) -> AffinityResult:
        if node is None:
            return affinity(connected=False, eligible=False, has_room=False)
        return affinity(
            connected=True,
            # A node on probation gets one job at a time: too few for a turn.
            eligible=node.id in pool and self._unfit(node) is None and not self.fleet.has_failed(node.id),
            has_room=node.id not in self.refused and self._free(node) + self.ask.turn_overcommit > 0,
        )

    def _pool(self, voice: bool = False) -> Pool:
        ask, fleet = self.ask, self.fleet
        if ask.text:
            return fleet.find_text(ask.src, ask.tgt, voice) or _EMPTY_POOL
        return fleet.find(ask.src, ask.tgt, ask.lang_a, ask.lang_b, voice) or _EMPTY_POOL

    def _find(self, pool: Pool) -> tuple[list[Node], dict[str, int], dict[str, str]]:
        """Up to two nodes that can take the job; or none, and the obstacles. Only one if it previewed the utterance."""
        if found := self._previewed(pool) or self._draw(pool):
            return found, {}, {}
        able, counts, names = self._scan(pool)
        return self._sample(able), counts, names

    def _previewed(self, pool: Pool) -> list[Node]:
        """The node that has heard the utterance already, if it can take the job."""
        self.drawn = []
        node_id = self.ask.preview_node
        node = self.fleet.get(node_id) if node_id is not None and node_id in pool else None
        if node is None or self._unfit(node, bool(pool.spoken)) is not None or self._no_slot(node) is not None:
            return []
        return self._drew([node])

    def _draw(self, pool: Pool) -> list[Node]:
        self.drawn = []
        found: list[Node] = []
        full: list[str] = []
        good = 0
        for at in _positions(pool.free, self.rng):
            node = self._node(pool.ids[at])
            self.drawn.append(node.id)
            obstacle = self._unfit(node, bool(pool.spoken)) or self._no_slot(node)
            if obstacle is None:
                found.append(node)
                good += not any(self._flaws(node))
                if good == 2:
                    break
            elif obstacle is Obstacle.FULL:
                full.append(node.id)
        for node_id in full:  # after the last draw: marking a node moves others
            self.fleet.mark_full(node_id)
        return found

    def _scan(self, pool: Pool) -> tuple[list[Node], dict[str, int], dict[str, str]]:
        """Every node that may have a free slot; of the full ones as many as are named, the rest is counted."""
        able: list[Node] = []
        counts: Counter[str] = Counter()
        names: dict[str, str] = {}
        for at, node_id in enumerate(pool.ids):
            if at >= pool.free and len(names) == MAX_NAMES:
                counts[Obstacle.FULL.value] += len(pool) - at
                break
            node = self._node(node_id)
            obstacle = self._unfit(node, bool(pool.spoken)) or self._no_slot(node)
            if obstacle is None:
                able.append(node)
                continue
            counts[obstacle.value] += 1
            if len(names) < MAX_NAMES:
                names[node_id] = obstacle.value
        return able, dict(counts), names

    def _sample(self, able: list[Node]) -> list[Node]:
        able = [node for node in able if not any(self._flaws(node))] or able
        return self._drew(self.rng.sample(able, min(2, len(able))))

    def _nodes_that_had_it(self, pool: Pool) -> list[Node]:
        """Nodes that had the job and take it again. The job's reservation there stays, so they have a slot for it.

        The last choice, however free they are.
        """
        had = (self._node(node_id) for node_id in sorted(self.ask.seen) if node_id in pool)
        return self._drew([node for node in had if node.id not in self.refused and self._unfit(node) is None])

    def _drew(self, found: list[Node]) -> list[Node]:
        self.drawn.extend(node.id for node in found if node.id not in self.drawn)
        return found

    def _best(self, found: list[Node]) -> Node:
        return found[0] if len(found) == 1 else max(found, key=self._rank)

    def _rank(self, node: Node) -> tuple[tuple[bool, ...], int, bool]:
        good = tuple(not flaw for flaw in self._flaws(node))
        return good, self._slots(node) - self.fleet.load(node.id), node.instance == self.instance

    def _flaws(self, node: Node) -> tuple[bool, ...]:
        """What makes a node a second choice, such as a GPU queue: a heartbeat's count is up to 15 s old."""
        return node.id in self.ask.later, node.gpu_queue > 0

    def _assign(self, node: Node, overcommit: int, by_turn: AffinityResult | None, pool: Pool) -> Assign:
        receipt = Receipt(len(pool), self.drawn, node.id, by_turn, previewed=node.id == self.ask.preview_node)
        kept_free = self._kept_free(node) if self.ask.yields else 0
        limit = self._slots(node) + overcommit - kept_free
        assign = Assign(node.id, node.epoch, limit, by_turn, receipt, kept_free=kept_free)
        if self.ask.voice:
            cooling = self.fleet.cooling(node.id, VOICE, self.now)
            assign.text_only = cooling or not node.has_voice
            receipt.text_only = cooling or node.id not in self._pool(voice=True)
        return assign

    def _unfit(self, node: Node, voice: bool = False) -> Obstacle | None:
        """Every filter but the free slot."""
        ask = self.ask
        if node.draining:
            return Obstacle.DRAINING
        if node.ready is not None and not ask.needs <= node.ready:
            return Obstacle.NOT_READY
        # Before the cool-down: a job must not wait for a node that it cannot go to afterwards.
        if node.id in ask.failed or (node.id in ask.seen and "reattempt" not in node.features):
            return Obstacle.SEEN
        return self._cools_down(node.id, (*ask.needs, VOICE) if voice else ask.needs)

    def _cools_down(self, node_id: str, needs: Iterable[str]) -> Obstacle | None:
        until, paused = self.fleet.cooling_until(node_id, needs, self.now), self.fleet.paused_until(node_id)
        if max(until, paused) <= self.now:
            return None
        self.cool_at = min(self.cool_at, max(until, paused))
        return Obstacle.COOLING_DOWN if until > self.now else Obstacle.FAILING

    def _no_slot(self, node: Node) -> Obstacle | None:
        if node.id in self.refused:
            return Obstacle.REFUSED
        if node.id in self.ask.seen:
            return Obstacle.SEEN
        if self.fleet.full(node.id, self.now) or (free := self._free(node)) <= 0:
            return Obstacle.FULL
        return Obstacle.KEPT_FREE if self.ask.yields and free <= self._kept_free(node) else None

    def _free(self, node: Node) -> int:
        """An upper bound of the free slots: other instances may have reserved some."""
        return self._slots(node) - self.fleet.reserved(node.id)

    def _kept_free(self, node: Node) -> int:
        """How many of its slots a job that yields leaves to speech."""
        if not node.asr:
            return 0
        return 1 if self._slots(node) > 1 else int(self.ask.speech_waits)

    def _slots(self, node: Node) -> int:
        return 1 if self.fleet.on_probation(node.id, self.now) else node.slots or self.ask.default_slots

    def _node(self, node_id: str) -> Node:
        node = self.fleet.get(node_id)
        assert node is not None, "a pool holds only nodes of the fleet"
        return node


_EMPTY_POOL = Pool(frozenset(), frozenset())


def _positions(n: int, rng: Random) -> Iterator[int]:
    """At most MAX_DRAWS positions below `n`, each once: a partial shuffle."""
    moved: dict[int, int] = {}
    for at in range(min(n, MAX_DRAWS)):
        other = at + int(rng.random() * (n - at))
        yield moved.get(other, other)
        moved[other] = moved.get(at, at)


def _reason(counts: dict[str, int]) -> NoNode:
    """The obstacle that ends first: a slot is released sooner than a cool-down ends."""
    if not _NO_SLOT.isdisjoint(counts):
        return NoNode.ALL_FULL
    return NoNode.NO_NODE_IN_POOL if _COOL.isdisjoint(counts) else NoNode.ALL_COOLING_DOWN
