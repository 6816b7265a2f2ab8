import pytest

from dragoman.domain.limits.connections import ConnectionLimits, PerAddressLimit, is_loopback, share_of_address

REMOTE, OTHER = "203.0.113.7", "198.51.100.1"


def test_address_is_counted_while_it_has_a_connection() -> None:
    addresses = PerAddressLimit()
    addresses.add(REMOTE)
    addresses.add(REMOTE)
    assert (addresses.of(REMOTE), addresses.of(OTHER)) == (2, 0)
    addresses.drop(REMOTE)
    addresses.drop(REMOTE)
    assert len(addresses) == 0


def test_nothing_is_kept_for_addresses_that_left_or_were_only_asked_about() -> None:
    addresses = PerAddressLimit(5)
    for number in range(1000):
        addresses.add(str(number))
        addresses.drop(str(number))
        addresses.of(f"asked {number}")
        addresses.is_full(f"asked {number}")
    assert len(addresses) == 0


def test_full_address_gets_no_more_connections_until_one_is_gone_and_others_do() -> None:
    addresses = PerAddressLimit(2)
    addresses.add(REMOTE)
    assert not addresses.is_full(REMOTE)
    addresses.add(REMOTE)
    assert addresses.is_full(REMOTE)
    assert not addresses.is_full(OTHER)
    addresses.drop(REMOTE)
    assert not addresses.is_full(REMOTE)


def test_zero_is_any_number() -> None:
    addresses = PerAddressLimit(0)
    for _ in range(1000):
        addresses.add(REMOTE)
    assert not addresses.is_full(REMOTE)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", ""])
def test_loopback_is_never_full(address: str) -> None:
    addresses = PerAddressLimit(1)
    addresses.add(address)
    assert is_loopback(address)
    assert not addresses.is_full(address)


@pytest.mark.parametrize("address", [REMOTE, "::ffff:203.0.113.7", "fe80::1%eth0", "10.0.0.1", "nonsense"])
def test_every_other_address_can_be_full(address: str) -> None:
    addresses = PerAddressLimit(1)
    addresses.add(address)
    assert not is_loopback(address)
    assert addresses.is_full(address)


def test_share_of_an_address_is_a_quarter_and_at_least_one() -> None:
    assert [share_of_address(total) for total in (1, 3, 4, 2000)] == [1, 1, 1, 500]


def test_shortest_time_limit_is_found() -> None:
    assert ConnectionLimits(head_timeout_s=0.5).shortest_s() == 0.5
    assert ConnectionLimits(out_queue_age_s=0.25, head_timeout_s=0.5).shortest_s() == 0.25
