"""This instance's view of the nodes: their capabilities, their pools, and what is known of their load.

A node serves every ordered pair of a language it recognises and one it translates into. For text jobs it names its
pairs; with the source `auto` it serves every source. A pool is built when its languages are first asked for, and
updated when a node comes, changes or goes: placing a job costs the same with ten nodes and with a thousand.

Redis alone knows the slots. `reserved` counts the slots of this instance's jobs, `load` adds the jobs of other
instances by the node's own count, `full_until` remembers a refusal. They only rank candidates and rule them out.
Tables keyed by a client's input hold only languages that some node has, and are bounded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import TypeVar

from dragoman.domain.pool import AUTO, Pool, TextPair, languages

T = TypeVar("T")

WHOLE_NODE = "*"  # the service name under which a node cools down for everything
VOICE = "tts"  # the service type of speech synthesis
MAX_POOLS = 512
MAX_COOLING = 4096


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    epoch: int  # one life of its connection
    instance: str  # where its socket is
    slots: int  # 0: not reported
    asr: frozenset[str]
    semantic: frozenset[str]
    tts: frozenset[str] = frozenset()
    ready: frozenset[str] | None = None  # service types that are ready; None: not reported
    features: frozenset[str] = frozenset()
    gpu_queue: int = 0
    running: int = 0
    draining: bool = False
    public: bool = True
    tenant: str = "default"
    seen_ms: int = 0
    text: frozenset[TextPair] = frozenset()  # the pairs of its text jobs
    previews: int = 0  # utterances that it previews at a time

    @property
    def has_voice(self) -> bool:
        """False only if the node says that it is not ready for speech synthesis."""
        return self.ready is None or VOICE in self.ready

    @property
    def spoken(self) -> frozenset[str]:
        """The languages it has a voice for now."""
        return self.tts if self.has_voice else frozenset()

    @property
    def languages(self) -> tuple[frozenset[str], frozenset[str], frozenset[str], frozenset[TextPair]]:
        """What decides on its pools."""
        return self.asr, self.semantic, self.spoken, self.text

    def serves(self, asr: frozenset[str], semantic: frozenset[str], spoken: frozenset[str] = frozenset()) -> bool:
        # A node without recognition serves nothing, not even a request for no language in particular.
        return bool(self.asr) and asr <= self.asr and semantic <= self.semantic and spoken <= self.spoken

    def belongs_to(self, pool: Pool) -> bool:
        if pool.text is None:
            return self.serves(pool.asr, pool.semantic, pool.spoken)
        return not self.text.isdisjoint(_wanted(pool.text)) and pool.spoken <= self.spoken


def _wanted(text: TextPair) -> tuple[TextPair, ...]:
    """The pairs with which a node serves this one."""
    return (text,) if text[0] == AUTO else (text, (AUTO, text[1]))


class Fleet:
    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        # Dicts as ordered sets: draws by a seeded generator must not depend on how strings hash today.
        self._by_asr: dict[str, dict[str, None]] = {}
        self._by_semantic: dict[str, dict[str, None]] = {}
        self._by_text: dict[TextPair, dict[str, None]] = {}
        self._previewers: dict[str, dict[str, None]] = {}  # by instance: nodes that can preview
        self._pools: dict[tuple[str | bool, ...], Pool] = {}  # of speech by five parts, of text by three
        self._reserved: dict[str, int] = {}
        self._foreign: dict[str, int] = {}
        self._marked_full: set[str] = set()
        self._full_until: dict[str, float] = {}
        self._refusals: list[tuple[float, str]] = []  # heap of full_until
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

    # -- nodes

    def upsert(self, node: Node) -> bool:
        """Add or update a node; False if the epoch is older than the known one."""
        old = self._nodes.get(node.id)
        if old is not None and node.epoch < old.epoch:
            return False
        self._nodes[node.id] = node
        self._index_previewer(node.id, old, node)
        # Its count is as old as its heartbeat: only what exceeds our own jobs is of other instances.
        self._foreign[node.id] = max(0, node.running - self.reserved(node.id))
        if old is None or old.languages != node.languages:
            self._reindex(node.id, old, node)
        if old is None or node.epoch > old.epoch or node.slots != old.slots:
            self.freed(node.id)
        return True

    def remove(self, node_id: str, epoch: int | None = None) -> bool:
        """Remove a node; with `epoch`, only if its epoch is not newer.

        Slots of our jobs and cool-downs stay: those jobs end later, and the node may come back.
        """
        old = self._nodes.get(node_id)
        if old is None or (epoch is not None and old.epoch > epoch):
            return False
        del self._nodes[node_id]
        self._foreign.pop(node_id, None)
        self.freed(node_id)
        self._index_previewer(node_id, old, None)
        self._reindex(node_id, old, None)
        return True

    # -- nodes that can preview

    def previewers(self, instance: str) -> Iterable[str]:
        """Those connected to this instance."""
        return self._previewers.get(instance, ())

    def previewers_elsewhere(self, instance: str) -> list[str]:
        """Those connected to other instances."""
        return [node_id for owner, ids in self._previewers.items() if owner != instance for node_id in ids]

    def _index_previewer(self, node_id: str, old: Node | None, new: Node | None) -> None:
        nowhere: frozenset[str] = frozenset()
        before = frozenset((old.instance,)) if old is not None and old.previews else nowhere
        after = frozenset((new.instance,)) if new is not None and new.previews else nowhere
        _update(self._previewers, node_id, before, after)

    # -- pools

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
            self._keep(key, pool)
        return pool

    def find_text(self, src: str, tgt: str, voice: bool = False) -> Pool | None:
        """The pool for text jobs of this pair; None if no node serves it. With `voice` as in `find`."""
        key = (src, tgt, voice)
        pool = self._pools.get(key)
        if pool is None:
            known = [ids for pair in _wanted((src, tgt)) if (ids := self._by_text.get(pair)) is not None]
            if known:
                pool = Pool(frozenset(), frozenset(), spoken=frozenset((tgt,) if voice else ()), text=(src, tgt))
                for node_id in (node_id for ids in known for node_id in ids):
                    if self._nodes[node_id].belongs_to(pool):
                        pool.add(node_id)
            self._keep(key, pool)
        return pool

    def serves_text(self, src: str, tgt: str) -> bool:
        """Whether some node takes text jobs of this pair and is not draining."""
        pool = self.find_text(src, tgt)
        return pool is not None and any(not self._nodes[node_id].draining for node_id in pool.ids)

    def serves_speech(self, src: str, tgt: str) -> bool:
        """Whether some node recognises one language and translates it into the other, and is not draining."""
        return any(not self._nodes[node_id].draining for node_id in self.pool(src, tgt))

    def text_targets(self) -> set[str]:
        """The languages that some node translates texts into."""
        return {tgt for _, tgt in self._by_text}

    def _keep(self, key: tuple[str | bool, ...], pool: Pool | None) -> None:
        if pool is not None:
            if len(self._pools) >= MAX_POOLS:
                del self._pools[next(iter(self._pools))]
            self._pools[key] = pool

    def _build(self, asr: frozenset[str], semantic: frozenset[str], voice: bool) -> Pool | None:
        members = [self._by_asr.get(lang) for lang in sorted(asr)]
        members += [self._by_semantic.get(lang) for lang in sorted(semantic)]
        known = [ids for ids in members if ids is not None]
        if len(known) < len(members):
            return None
        spoken = semantic if voice else frozenset[str]()
        fewest = min(known, key=len) if known else self._nodes  # any language in, none out: every node may do
        able = (id for id in fewest if self._nodes[id].serves(asr, semantic, spoken))
        return Pool(asr, semantic, able, spoken=spoken)

    def _reindex(self, node_id: str, old: Node | None, new: Node | None) -> None:
        nothing: frozenset[str] = frozenset()
        no_pair: frozenset[TextPair] = frozenset()
        _update(self._by_asr, node_id, old.asr if old else nothing, new.asr if new else nothing)
        _update(self._by_semantic, node_id, old.semantic if old else nothing, new.semantic if new else nothing)
        _update(self._by_text, node_id, old.text if old else no_pair, new.text if new else no_pair)
        for pool in self._pools.values():
            if new is not None and new.belongs_to(pool):
                pool.add(node_id)
            else:
                pool.discard(node_id)

    # -- load

    def reserved(self, node_id: str) -> int:
        """Slots of the node that jobs of this instance have."""
        return self._reserved.get(node_id, 0)

    def load(self, node_id: str) -> int:
        """Our jobs on the node, and those of other instances by its last report."""
        return self._reserved.get(node_id, 0) + self._foreign.get(node_id, 0)

    def reserve_slot(self, node_id: str) -> None:
        self._reserved[node_id] = self._reserved.get(node_id, 0) + 1

    def release_slot(self, node_id: str) -> None:
        """One of our slots was released."""
        left = self._reserved.get(node_id, 0) - 1
        if left > 0:
            self._reserved[node_id] = left
        else:
            self._reserved.pop(node_id, None)
        self.freed(node_id)

    def release_all_slots(self) -> None:
        """This instance was taken over: it has no slot any more."""
        taken, self._reserved = self._reserved, {}
        for node_id in taken:
            self.freed(node_id)

    def freed(self, node_id: str) -> None:
        """A slot was released, by this instance or another: the node is a candidate again."""
        self._full_until.pop(node_id, None)
        if node_id in self._marked_full:
            self._marked_full.remove(node_id)
            for pool in self._pools.values():
                pool.mark_free(node_id)

    def full_until(self, node_id: str, when: float) -> None:
        """Redis refused a slot; no reservation can expire before `when`."""
        if node_id in self._nodes and self._full_until.get(node_id) != when:
            self._full_until[node_id] = when
            heappush(self._refusals, (when, node_id))

    def full(self, node_id: str, now: float) -> bool:
        """Whether Redis refused a slot and nothing has happened since."""
        until = self._full_until.get(node_id)
        return until is not None and now < until

    def mark_full(self, node_id: str) -> None:
        """The node was found full: it is not drawn until a slot is released or the refusal expires."""
        self._marked_full.add(node_id)
        for pool in self._pools.values():
            pool.mark_full(node_id)

    def expire_refusals(self, now: float) -> None:
        """Mark the nodes as free whose refusal has expired."""
        while self._refusals and self._refusals[0][0] <= now:
            _, node_id = heappop(self._refusals)
            if node_id in self._full_until and not self.full(node_id, now):
                self.freed(node_id)

    def next_expiry(self) -> float:
        """When the next refusal expires; infinity if there is none."""
        while self._refusals and self._full_until.get(self._refusals[0][1]) != self._refusals[0][0]:
            heappop(self._refusals)
        return self._refusals[0][0] if self._refusals else inf

    # -- cool-downs

    def cool(self, node_id: str, service: str, until: float) -> None:
        services = self._cooling.pop(node_id, {})
        services[service] = max(until, services.get(service, until))
        self._cooling[node_id] = services
        if len(self._cooling) > MAX_COOLING:
            del self._cooling[next(iter(self._cooling))]

    def cooling(self, node_id: str, service: str, now: float) -> bool:
        return self.cooling_until(node_id, (service,), now) > now

    def cooling_until(self, node_id: str, services: Iterable[str], now: float) -> float:
        """Until when the node cools down for one of these services, or whole; a past time if it does not."""
        cooling = self._cooling.get(node_id)
        if cooling is None:
            return -inf
        until = max(cooling.get(WHOLE_NODE, -inf), *(cooling.get(service, -inf) for service in services), -inf)
        if all(each <= now for each in cooling.values()):
            del self._cooling[node_id]
        return until

    # -- pauses

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
        """A past time if it is not paused, or on probation."""
        return self._paused.get(node_id, -inf)

    def has_failed(self, node_id: str) -> bool:
        """Whether the node is paused or on probation."""
        return node_id in self._paused

    def on_probation(self, node_id: str, now: float) -> bool:
        return self._paused.get(node_id, inf) <= now


def _update(index: dict[T, dict[str, None]], node_id: str, before: frozenset[T], after: frozenset[T]) -> None:
    for key in before - after:
        del index[key][node_id]
        if not index[key]:
            del index[key]
    for key in after - before:
        index.setdefault(key, {})[node_id] = None
