"""Jobs of a session that are driven by another instance, and what that means for those after them."""

from collections.abc import Mapping
from dataclasses import dataclass

from dragoman.services.sockets import Socket
from dragoman.services.speech.dispatcher import Dispatcher
from dragoman.services.speech.order import Order


@dataclass(frozen=True, slots=True)
class Abroad:
    """An open index whose job another instance drives; past `give_up_at` it is told failed."""

    index: int
    job_id: str
    trace_id: str
    cut_at: float
    give_up_at: float


class Working:
    """The lower indexes whose job is alive elsewhere than where a result came from."""

    __slots__ = ("_abroad", "_dispatcher", "_node_id", "_orders")

    def __init__(
        self,
        orders: Mapping[int, tuple[Order, Socket | None]],
        abroad: Mapping[int, Abroad],
        dispatcher: Dispatcher,
        node_id: str | None,
    ) -> None:
        self._orders, self._abroad, self._dispatcher, self._node_id = orders, abroad, dispatcher, node_id

    def __contains__(self, index: object) -> bool:
        if index in self._abroad:
            return True
        found = self._orders.get(index) if isinstance(index, int) else None
        return found is not None and self._dispatcher.is_elsewhere(found[0].job_id, self._node_id)
