"""The supervisor without workers: restarts, timeouts and the port."""

import socket

import pytest

from dragoman.domain.limits.connections import ConnectionLimits
from dragoman.instance.instance import REDIS_TIMEOUT_S
from dragoman.supervisor.backoff import GOOD_LIFE_S, LONGEST_S, Backoff
from dragoman.supervisor.main import GRACE_S
from dragoman.supervisor.port import PortError, probe_port


def test_the_first_restart_is_at_once_and_each_next_waits_longer_up_to_ten_seconds() -> None:
    backoff = Backoff()
    assert [backoff.after(0.1) for _ in range(8)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_good_life_forgets_the_deaths_before_it() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.after(0.1)
    assert backoff.after(GOOD_LIFE_S) == 0.0
    assert backoff.deaths == 1
    assert backoff.after(0.1) == 0.5


def test_a_crash_loop_that_goes_on_for_ever_stays_at_the_longest_wait() -> None:
    backoff = Backoff()
    assert {backoff.after(0.1) for _ in range(5000)} >= {LONGEST_S}
    assert backoff.after(0.1) == LONGEST_S


def test_a_worker_whose_peers_do_not_follow_is_not_killed_while_it_takes_leave() -> None:
    close_s = ConnectionLimits().close_timeout_s
    sockets_s = close_s + close_s / 4  # the sweep that cuts them off comes round four times as often, at least
    requests_s = 2 * close_s  # may end by themselves, then are cancelled and waited for once more
    assert sockets_s + requests_s + REDIS_TIMEOUT_S < GRACE_S


def test_a_free_port_is_left_free() -> None:
    port = probe_port("127.0.0.1", 0)
    assert port > 0
    assert probe_port("127.0.0.1", port) == port


def test_zero_gives_one_port_for_every_address_of_the_host() -> None:
    assert probe_port("localhost", 0) > 0


def test_a_port_that_somebody_listens_on_is_noticed_even_if_he_would_share_it() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortError, match=rf"Port {port} on 127\.0\.0\.1 is taken .* server\.port"):
            probe_port("127.0.0.1", port)


def test_a_port_taken_on_one_address_is_noticed_from_all_addresses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(PortError, match="is taken"):
            probe_port("0.0.0.0", taken.getsockname()[1])


def test_connections_that_just_ended_do_not_count_as_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            # Closed here first, so that this side keeps the port in TIME_WAIT.
            accepted.close()
    assert probe_port("127.0.0.1", port) == port


@pytest.mark.parametrize("host", ["no-such-host.invalid", "1.2.3.4.5", "a" * 300])
def test_a_host_that_is_no_address_is_named(host: str) -> None:
    with pytest.raises(PortError, match=r"server\.host"):
        probe_port(host, 0)


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(PortError, match=r"does not have the address 192\.0\.2\.1: change server\.host"):
        probe_port("192.0.2.1", 0)
