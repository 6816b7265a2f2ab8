"""How many sessions one client may have: by its name, by its address, and of the instance."""

from itertools import count

from dragoman.domain.limits.sessions import (
    Holder,
    Room,
    SessionGrant,
    SessionLimit,
    SessionLimits,
    SessionQuota,
    room_for_job,
)

ANN, BOB = Holder("default/ann", "192.0.2.1"), Holder("default/bob", "192.0.2.1")
GATEWAY = Holder("default/gw", "192.0.2.9", gateway=True)
STRANGER = Holder("default/local", "192.0.2.1", anonymous=True)
LAPTOP = Holder("default/local", anonymous=True, gateway=True)

_names = count()


def quota(**limits: float) -> SessionQuota:
    unbounded = {"per_principal": 0, "per_gateway": 0, "per_address": 0, "instance": 100}
    return SessionQuota(SessionLimits(**unbounded | limits))  # type: ignore[arg-type]


def taken(of: SessionQuota, *holders: Holder) -> list[SessionGrant]:
    return [of.admit(f"s-{next(_names)}", holder) for holder in holders]


def test_principal_has_so_many_sessions_and_one_more_when_one_is_released() -> None:
    some = quota(per_principal=2)
    first, _ = taken(some, ANN, ANN)
    assert some.full(ANN) is SessionLimit.PRINCIPAL
    assert some.full(BOB) is None
    some.release(first)
    assert some.full(ANN) is None


def test_address_has_so_many_sessions_whatever_names_it_gives() -> None:
    some = quota(per_address=2)
    taken(some, ANN, BOB)
    assert some.full(STRANGER) is SessionLimit.ADDRESS
    assert some.full(Holder("default/ann", "192.0.2.2")) is None


def test_anonymous_clients_are_counted_by_address_alone() -> None:
    some = quota(per_principal=1, per_address=2)
    taken(some, STRANGER)
    assert some.full(STRANGER) is None
    taken(some, STRANGER)
    assert some.full(STRANGER) is SessionLimit.ADDRESS
    taken(some, *[LAPTOP] * 5)
    assert some.full(LAPTOP) is None


def test_gateway_has_a_limit_of_its_own_instead_of_those_of_a_client() -> None:
    some = quota(per_principal=1, per_address=1, per_gateway=3)
    taken(some, GATEWAY, GATEWAY)
    assert some.full(GATEWAY) is None
    taken(some, GATEWAY)
    assert some.full(GATEWAY) is SessionLimit.GATEWAY
    assert some.full(Holder("default/ann", GATEWAY.address)) is None


def test_session_that_was_left_counts_against_its_holder_and_not_against_the_instance() -> None:
    some = quota(per_principal=1, instance=1)
    (place,) = taken(some, ANN)
    assert some.full(BOB) is SessionLimit.INSTANCE
    some.close(place)
    assert (len(some), some.full(ANN), some.full(BOB)) == (0, SessionLimit.PRINCIPAL, None)
    some.release(place)
    assert some.full(ANN) is None


def test_oldest_detached_session_ends_when_they_take_more_than_their_share_of_a_full_instance() -> None:
    some = quota(instance=4, detached_share=0.5)
    a, b, c = taken(some, LAPTOP, LAPTOP, LAPTOP)
    for place in (b, a, c):
        some.detach(place)
    assert some.evictable() is None, "there is room"
    taken(some, ANN)
    assert some.full(ANN) is None
    assert some.evictable() is b
    some.release(b)
    taken(some, ANN)
    assert (some.evictable(), some.full(ANN)) == (None, SessionLimit.INSTANCE)


def test_session_whose_socket_is_back_is_not_ended_for_others() -> None:
    some = quota(instance=2, detached_share=0.4)
    a, b = taken(some, LAPTOP, LAPTOP)
    some.detach(a)
    some.detach(b)
    some.attach(a)
    assert (some.evictable(), some.detached) == (b, 1)


def test_nothing_is_remembered_of_those_who_have_no_session() -> None:
    some = quota()
    held = taken(some, ANN, BOB, GATEWAY, STRANGER, LAPTOP)
    for place in held:
        some.detach(place)
    for place in held * 2:
        some.release(place)
    some.detach(held[0])
    assert (len(some), some.detached, some.holders) == (0, 0, 0)


def test_session_with_many_open_jobs_is_paused_first_and_refused_at_twice_as_many() -> None:
    rooms = [room_for_job(open_jobs, 2) for open_jobs in range(1, 7)]
    assert rooms == [Room.ENOUGH] * 2 + [Room.LITTLE] * 2 + [Room.NONE] * 2
    assert room_for_job(10_000, 0) is Room.ENOUGH
