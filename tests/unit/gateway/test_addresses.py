import pytest

from dragoman.gateway.addresses import Addresses, Crowd, is_here
from dragoman.gateway.handshake import Reject, Request

FAR = "203.0.113.7"


def request(address: str) -> Request:
    return Request("GET", "/ws", {}, {}, (address, 1))


def test_an_address_is_counted_while_it_has_something() -> None:
    addresses = Addresses()
    addresses.add(FAR)
    addresses.add(FAR)
    assert addresses.of(FAR) == 2
    assert addresses.of("198.51.100.1") == 0
    addresses.drop(FAR)
    addresses.drop(FAR)
    assert len(addresses) == 0


def test_nothing_is_kept_for_addresses_that_went_or_were_only_asked_about() -> None:
    addresses = Addresses()
    for number in range(1000):
        addresses.add(str(number))
        addresses.drop(str(number))
        addresses.of(f"asked {number}")
    assert len(addresses) == 0


def test_an_address_with_all_its_sockets_is_told_to_come_back_and_others_come_in() -> None:
    sockets = {FAR: 2}
    crowd = Crowd(2, lambda address: sockets.get(address, 0))
    refusal = crowd(request(FAR))
    assert isinstance(refusal, Reject)
    assert refusal.status == 429
    assert refusal.headers["Retry-After"]
    assert crowd(request("198.51.100.1")) is None
    sockets[FAR] = 1
    assert crowd(request(FAR)) is None


def test_none_is_a_number_too() -> None:
    assert Crowd(0, lambda _: 1_000_000)(request(FAR)) is None


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", ""])
def test_this_machine_is_not_counted(address: str) -> None:
    assert is_here(address)
    assert Crowd(1, lambda _: 10)(request(address)) is None


@pytest.mark.parametrize("address", [FAR, "::ffff:203.0.113.7", "fe80::1%eth0", "10.0.0.1", "nonsense"])
def test_every_other_is(address: str) -> None:
    assert not is_here(address)
    assert Crowd(1, lambda _: 10)(request(address)) is not None
