"""A port that cannot be had is told in one sentence, before any worker is started."""

import socket

import pytest

from dragoman.supervisor.port import PortError, probe_port


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
