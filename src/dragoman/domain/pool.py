"""A pool: the nodes that serve certain languages, by speech or by text, the full ones separated.

The ids are in one list, those with free slots in front. Drawing a random node, adding, removing and marking one cost
the same for any number of nodes. Full nodes stay in the pool, but are not drawn.
"""

from collections.abc import Iterable

AUTO = "auto"
TextPair = tuple[str, str]  # source and target


def languages(
    src: str, tgt: str, lang_a: str | None = None, lang_b: str | None = None
) -> tuple[frozenset[str], frozenset[str]]:
    """The languages a node must recognise and translate into: one pair, both ways for `auto` of two, `auto` of any.

    An empty `tgt`: the node need not translate.
    """
    into = frozenset((tgt,) if tgt else ())
    if src != AUTO:
        return frozenset((src,)), into
    if lang_a and lang_b:
        both = frozenset((lang_a, lang_b))
        return both, both
    return frozenset(), into


class Pool:
    __slots__ = ("_at", "asr", "free", "ids", "semantic", "spoken", "text")

    def __init__(
        self,
        asr: frozenset[str],
        semantic: frozenset[str],
        ids: Iterable[str] = (),
        *,
        spoken: frozenset[str] = frozenset(),
        text: TextPair | None = None,
    ) -> None:
        self.asr = asr
        self.semantic = semantic
        self.spoken = spoken  # languages its nodes have a voice for
        self.text = text  # of text jobs: source and target
        self.ids = list(ids)  # to read and to draw from; changed only here
        self.free = len(self.ids)  # how many of them, from the front, may have a free slot
        self._at = {node_id: at for at, node_id in enumerate(self.ids)}

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._at

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, node_id: str) -> None:
        if node_id not in self._at:
            self._at[node_id] = len(self.ids)
            self.ids.append(node_id)
            self.mark_free(node_id)

    def discard(self, node_id: str) -> None:
        if node_id in self._at:
            self.mark_full(node_id)
            self._swap(self._at[node_id], len(self.ids) - 1)
            self.ids.pop()
            del self._at[node_id]

    def mark_full(self, node_id: str) -> None:
        at = self._at.get(node_id)
        if at is not None and at < self.free:
            self.free -= 1
            self._swap(at, self.free)

    def mark_free(self, node_id: str) -> None:
        at = self._at.get(node_id)
        if at is not None and at >= self.free:
            self._swap(at, self.free)
            self.free += 1

    def _swap(self, one: int, other: int) -> None:
        ids = self.ids
        ids[one], ids[other] = ids[other], ids[one]
        self._at[ids[one]], self._at[ids[other]] = one, other
