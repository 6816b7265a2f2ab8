import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.ping import latency, ping

Serve = Callable[[bytes], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Listens for one caller and answers everything with the same bytes; gives the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def answer(reply: bytes) -> None:
        line, _ = listener.accept()
        with line:
            while line.recv(64):
                line.sendall(reply)

    def start(reply: bytes) -> int:
        threads.append(threading.Thread(target=answer, args=(reply,)))
        threads[-1].start()
        return int(listener.getsockname()[1])

    yield start
    for thread in threads:
        thread.join()
    listener.close()


def test_pings_are_counted_once_at_least(serve: Serve) -> None:
    found = ping("127.0.0.1", serve(b"+PONG\r\n"), 0.0)
    assert found.keys() == {"p50_us", "p99_us"}
    assert 0 < found["p50_us"] <= found["p99_us"]


def test_what_is_no_redis_is_told_in_a_sentence(serve: Serve) -> None:
    with pytest.raises(BenchError, match=r"answered PING with b'-ERR what\?"):
        ping("127.0.0.1", serve(b"-ERR what?\r\n"), 0.0)


def test_nobody_there_is_told_in_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(BenchError, match=rf"^PING to 127\.0\.0\.1:{port} failed: .*\.$"):
        ping("127.0.0.1", port, 0.0)


def test_latencies_are_in_microseconds() -> None:
    assert latency([0.002, 0.001, 0.003]) == pytest.approx({"p50_us": 2000, "p99_us": 3000})
