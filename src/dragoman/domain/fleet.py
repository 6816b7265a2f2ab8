"""This instance's view of the nodes: who they are, which pool they belong to, what we know of their load.

A node serves every ordered pair of a language it hears and one it writes. Pools are kept, not searched: one is built
when its languages are first asked for and follows the nodes that come, go and change, so placing costs the same in a
fleet of ten and of a thousand.

Of slots, Redis alone knows the truth. `taken` counts what this instance holds; `load` adds what a node's own count of
running jobs says about the others; `full_until` remembers a refusal. They rank and rule out candidates, no more.
Tables keyed by what a client says hold only languages some node has, and are bounded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from dragoman.domain.pool import AUTO, Pool, languages

WHOLE_NODE = "*"  # the service name under which a node cools down for everything
VOICE = "tts"  # the service type of speech synthesis
MAX_POOLS = 512
MAX_COOLING = 4096


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    epoch: int  # one life of its connection
    instance: str  # who holds its socket
    slots: int  # 0: not told
    asr: frozenset[str]
    semantic: frozenset[str]
    tts: frozenset[str] = frozenset()
    ready: frozenset[str] | None = None  # service types that are ready; None: not told
    features: frozenset[str] = frozenset()
    gpu_queue: int = 0
    running: int = 0
    draining: bool = False
    public: bool = True
    tenant: str = "default"
    seen_ms: int = 0

    @property
    def has_voice(self) -> bool:
        """False only if the node says that it is not ready for speech synthesis."""
        return self.ready is None or VOICE in self.ready

    @property
    def spoken(self) -> frozenset[str]:
        """The languages it has a voice for now."""
        return self.tts if self.has_voice else frozenset()

    def serves(self, asr: frozenset[str], semantic: frozenset[str], spoken: frozenset[str] = frozenset()) -> bool:
        # Nothing heard, nothing served: not even what asks for no language in particular.
        return bool(self.asr) and asr <= self.asr and semantic <= self.semantic and spoken <= self.spoken


class Fleet:
    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        # Dicts as ordered sets: draws by a seeded generator must not depend on how strings hash today.
        self._hears: dict[str, dict[str, None]] = {}
        self._writes: dict[str, dict[str, None]] = {}
        self._pools: dict[tuple[str, str, str, str, bool], Pool] = {}
        self._taken: dict[str, int] = {}
        self._foreign: dict[str, int] = {}
        self._shut: set[str] = set()
        self._full_until: dict[str, float] = {}
        self._lapses: list[tuple[float, str]] = []  # heap of full_until
        self._cooling: dict[str, dict[str, float]] = {}
        self._paused: dict[str, float] = {}  # nodes that failed too often: until when; on probation after that

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._nodes

    def nodes(self) -> Iterable[Node]:
        return self._nodes.values()

    def get(self, node_id: str) -> Node | None:
        return self._nodes.get(node_id)

    # -- who is there

    def upsert(self, node: Node) -> bool:
        """Take in what is known of a node; False if it speaks of an earlier life than we know."""
        old = self._nodes.get(node.id)
        if old is not None and node.epoch < old.epoch:
            return False
        self._nodes[node.id] = node
        # Its count is as old as its heartbeat; only what it shows beyond our own jobs is news.
        self._foreign[node.id] = max(0, node.running - self.taken(node.id))
        if old is None or (old.asr, old.semantic, old.spoken) != (node.asr, node.semantic, node.spoken):
            self._reindex(node.id, old, node)
        if old is None or node.epoch > old.epoch or node.slots != old.slots:
            self.freed(node.id)
        return True

    def remove(self, node_id: str, epoch: int | None = None) -> bool:
        """Forget a node; with `epoch`, only if it is of that life or an earlier one.

        What it holds of ours and what it cools down from outlast it: our jobs there end later, and it may be back.
        """
        old = self._nodes.get(node_id)
        if old is None or (epoch is not None and old.epoch > epoch):
            return False
        del self._nodes[node_id]
        self._foreign.pop(node_id, None)
        self.freed(node_id)
        self._reindex(node_id, old, None)
        return True

    # -- who can

    def pool(
        self, src: str, tgt: str, lang_a: str | None = None, lang_b: str | None = None, voice: bool = False
    ) -> Sequence[str]:
        """The nodes able to serve these languages; a live view, to read before the next change."""
        found = self.find(src, tgt, lang_a, lang_b, voice)
        return () if found is None else found.ids

    def find(
        self, src: str, tgt: str, lang_a: str | None = None, lang_b: str | None = None, voice: bool = False
    ) -> Pool | None:
        """The pool itself; None if some of the languages are unknown to every node.

        With `voice`, only the nodes that also speak every language they may translate into.
        """
        two_way = src == AUTO and lang_a and lang_b
        key = (src, "", lang_a or "", lang_b or "", voice) if two_way else (src, tgt, "", "", voice)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._build(*languages(src, tgt, lang_a, lang_b), voice)
            if pool is not None:
                if len(self._pools) >= MAX_POOLS:
                    del self._pools[next(iter(self._pools))]
                self._pools[key] = pool
        return pool

    def _build(self, asr: frozenset[str], semantic: frozenset[str], voice: bool) -> Pool | None:
        members = [self._hears.get(lang) for lang in sorted(asr)]
        members += [self._writes.get(lang) for lang in sorted(semantic)]
        known = [ids for ids in members if ids is not None]
        if len(known) < len(members):
            return None
        spoken = semantic if voice else frozenset[str]()
        able = (id for id in min(known, key=len) if self._nodes[id].serves(asr, semantic, spoken))
        return Pool(asr, semantic, able, spoken=spoken)

    def _reindex(self, node_id: str, old: Node | None, new: Node | None) -> None:
        nothing: frozenset[str] = frozenset()
        for index, before, after in (
            (self._hears, old.asr if old else nothing, new.asr if new else nothing),
            (self._writes, old.semantic if old else nothing, new.semantic if new else nothing),
        ):
            for lang in before - after:
                del index[lang][node_id]
                if not index[lang]:
                    del index[lang]
            for lang in after - before:
                index.setdefault(lang, {})[node_id] = None
        for pool in self._pools.values():
            if new is not None and new.serves(pool.asr, pool.semantic, pool.spoken):
                pool.add(node_id)
            else:
                pool.discard(node_id)

    # -- how loaded

    def taken(self, node_id: str) -> int:
        """Slots of the node that this instance holds."""
        return self._taken.get(node_id, 0)

    def load(self, node_id: str) -> int:
        """Our jobs on the node, and those of others as far as it told."""
        return self._taken.get(node_id, 0) + self._foreign.get(node_id, 0)

    def took(self, node_id: str) -> None:
        self._taken[node_id] = self._taken.get(node_id, 0) + 1

    def gave(self, node_id: str) -> None:
        """One of our slots went back."""
        left = self._taken.get(node_id, 0) - 1
        if left > 0:
            self._taken[node_id] = left
        else:
            self._taken.pop(node_id, None)
        self.freed(node_id)

    def gave_all(self) -> None:
        """None of our slots is ours any more."""
        taken, self._taken = self._taken, {}
        for node_id in taken:
            self.freed(node_id)

    def freed(self, node_id: str) -> None:
        """Someone's slot went back: whatever made the node full, it is worth a look again."""
        self._full_until.pop(node_id, None)
        if node_id in self._shut:
            self._shut.remove(node_id)
            for pool in self._pools.values():
                pool.reopen(node_id)

    def full_until(self, node_id: str, when: float) -> None:
        """Redis refused a slot; none can lapse before `when`."""
        if node_id in self._nodes and self._full_until.get(node_id) != when:
            self._full_until[node_id] = when
            heappush(self._lapses, (when, node_id))

    def full(self, node_id: str, now: float) -> bool:
        """Whether Redis refused a slot and nothing has happened since."""
        until = self._full_until.get(node_id)
        return until is not None and now < until

    def shut(self, node_id: str) -> None:
        """The node was found full: not to be drawn until a slot goes back or a refusal lapses."""
        self._shut.add(node_id)
        for pool in self._pools.values():
            pool.shut(node_id)

    def lapse(self, now: float) -> None:
        """Open the nodes whose refusal has run out."""
        while self._lapses and self._lapses[0][0] <= now:
            _, node_id = heappop(self._lapses)
            if node_id in self._full_until and not self.full(node_id, now):
                self.freed(node_id)

    def next_lapse(self) -> float:
        """When the next refusal runs out by itself; infinity if none does."""
        while self._lapses and self._full_until.get(self._lapses[0][1]) != self._lapses[0][0]:
            heappop(self._lapses)
        return self._lapses[0][0] if self._lapses else inf

    # -- who cools down

    def cool(self, node_id: str, service: str, until: float) -> None:
        services = self._cooling.pop(node_id, {})
        services[service] = max(until, services.get(service, until))
        self._cooling[node_id] = services
        if len(self._cooling) > MAX_COOLING:
            del self._cooling[next(iter(self._cooling))]

    def cooling(self, node_id: str, service: str, now: float) -> bool:
        return self.cooling_until(node_id, (service,), now) > now

    def cooling_until(self, node_id: str, services: Iterable[str], now: float) -> float:
        """Until when the node is out for one of these services, or whole; a time gone by if it is not."""
        cooling = self._cooling.get(node_id)
        if cooling is None:
            return -inf
        until = max(cooling.get(WHOLE_NODE, -inf), *(cooling.get(service, -inf) for service in services), -inf)
        if all(each <= now for each in cooling.values()):
            del self._cooling[node_id]
        return until

    # -- which ones fail

    def pause(self, node_id: str, until: float) -> None:
        """The node failed several jobs in a row: it gets none until then, and one at a time after that."""
        self._paused.pop(node_id, None)
        self._paused[node_id] = until
        if len(self._paused) > MAX_COOLING:
            del self._paused[next(iter(self._paused))]

    def resume(self, node_id: str) -> None:
        """The node works again."""
        if self._paused.pop(node_id, None) is not None:
            self.freed(node_id)

    def paused_until(self, node_id: str) -> float:
        """A time gone by if it is not paused, or on probation."""
        return self._paused.get(node_id, -inf)

    def has_failed(self, node_id: str) -> bool:
        """Whether the node is paused or on probation."""
        return node_id in self._paused

    def on_probation(self, node_id: str, now: float) -> bool:
        return self._paused.get(node_id, inf) <= now
