"""The counters of the gateway: plain integers on the hot path, which Prometheus reads when it scrapes."""

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class Counters(Collector):
    """Totals since start. `closed` (by close code) and `refused` (by HTTP status) count what we ended ourselves."""

    __slots__ = (
        "accepted",
        "buffers_returned",
        "bytes_in",
        "bytes_out",
        "closed",
        "endpoint_errors",
        "frames_in",
        "frames_out",
        "heads_dropped",
        "http",
        "opened",
        "refused",
        "writes",
    )

    def __init__(self) -> None:
        self.accepted = 0  # TCP connections
        self.http = 0  # of them handed to the HTTP application
        self.opened = 0  # of them that became WebSockets, at once or after HTTP requests
        self.heads_dropped = 0  # of them that sent no complete request in time, or were crowded out
        self.refused: Counter[int] = Counter()
        self.closed: Counter[int] = Counter()
        self.frames_in = 0
        self.bytes_in = 0
        self.frames_out = 0
        self.bytes_out = 0
        self.writes = 0
        self.endpoint_errors = 0
        self.buffers_returned = 0  # grown read buffers given back

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield _total("accepted", "TCP connections accepted", self.accepted)
        yield _total("http", "Connections that sent an HTTP request", self.http)
        yield _total("opened", "Connections that became WebSockets", self.opened)
        yield _total(
            "heads_dropped",
            "Connections closed because no complete request arrived in time, or to make room",
            self.heads_dropped,
        )
        yield _totals("refused", "Upgrades and requests refused by the gateway, by HTTP status", "status", self.refused)
        yield _totals("closed", "WebSockets closed by this instance, by close code", "code", self.closed)
        yield _totals(
            "frames", "WebSocket frames, in and out", "direction", {"in": self.frames_in, "out": self.frames_out}
        )
        yield _totals(
            "bytes",
            "Bytes of messages in, and of their frames out",
            "direction",
            {"in": self.bytes_in, "out": self.bytes_out},
        )
        yield _total("writes", "Writes to WebSockets; the frames of one turn of the event loop share one", self.writes)
        yield _total(
            "endpoint_errors",
            "WebSockets closed with 1011 because of a server error; the log has the reason",
            self.endpoint_errors,
        )
        yield _total(
            "buffers_returned",
            "Read buffers that a large message had enlarged and that were released",
            self.buffers_returned,
        )


def _total(name: str, help: str, value: int) -> CounterMetricFamily:
    return CounterMetricFamily(f"dragoman_gateway_{name}", help, value=value)


def _totals(name: str, help: str, label: str, values: Mapping[str, int] | Mapping[int, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"dragoman_gateway_{name}", help, labels=[label])
    for key, value in values.items():
        family.add_metric([str(key)], value)
    return family
