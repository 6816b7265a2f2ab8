"""The supervisor without workers: restarts, timeouts and the port."""

import socket

import pytest

from dragoman.domain.limits.connections import ConnectionLimits
from dragoman.instance.instance import REDIS_TIMEOUT_S
from dragoman.supervisor.main import GRACE_S, MAX_DELAY_S, STABLE_S, PortError, RestartDelay, probe_port
from support.tables import for_each


def test_restart_delay_is_zero_first_and_then_doubles_up_to_ten_seconds() -> None:
    delay = RestartDelay()
    assert [delay.after(0.1) for _ in range(8)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_restart_delay_is_reset_by_a_process_that_ran_long_enough() -> None:
    delay = RestartDelay()
    for _ in range(5):
        delay.after(0.1)
    assert delay.after(STABLE_S) == 0.0
    assert delay.ends == 1
    assert delay.after(0.1) == 0.5


def test_restart_delay_of_an_endless_crash_loop_stays_at_its_maximum() -> None:
    delay = RestartDelay()
    assert {delay.after(0.1) for _ in range(5000)} >= {MAX_DELAY_S}
    assert delay.after(0.1) == MAX_DELAY_S


def test_worker_has_enough_time_to_close_its_connections_before_it_is_killed() -> None:
    close_s = ConnectionLimits().close_timeout_s
    sockets_s = close_s + close_s / 4  # the sweep that cuts them off comes round four times as often, at least
    requests_s = 2 * close_s  # may end by themselves, then are cancelled and waited for once more
    assert sockets_s + requests_s + REDIS_TIMEOUT_S < GRACE_S


def test_probe_leaves_a_free_port_free() -> None:
    port = probe_port("127.0.0.1", 0)
    assert port > 0
    assert probe_port("127.0.0.1", port) == port


def test_probe_finds_one_port_for_all_addresses_of_the_host() -> None:
    assert probe_port("localhost", 0) > 0


def test_probe_detects_a_port_in_use_even_if_it_is_shared() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortError, match=rf"Port {port} on 127\.0\.0\.1 is taken .* server\.port"):
            probe_port("127.0.0.1", port)


def test_probe_of_all_addresses_detects_a_port_in_use_on_one() -> None:
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


@for_each(["no-such-host.invalid", "1.2.3.4.5", "a" * 300])
def test_a_host_that_is_no_address_is_named(host: str) -> None:
    with pytest.raises(PortError, match=r"server\.host"):
        probe_port(host, 0)


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(PortError, match=r"does not have the address 192\.0\.2\.1\. Set another server\.host"):
        probe_port("192.0.2.1", 0)
