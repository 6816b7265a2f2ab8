from collections import Counter
from itertools import permutations, product

from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.chat.shards import MAX_SHARDS, SLOTS, assign, in_rollout, shard_of, tag
from dragoman.store.redis import slot_of
from support.tables import for_each

USERS = st.integers(1, 2**63 - 1)
NAMES = st.sets(st.text("abcdef-0123456789", min_size=1, max_size=12), min_size=1, max_size=12)


# These may never change: a sender on another shard than before loses its order, a shard under another tag its messages.
def test_a_sender_is_on_the_same_shard_in_every_release() -> None:
    assert [shard_of(user, 8) for user in (1, 2, 3, 4, 5, 1000, 10**12)] == [7, 4, 7, 2, 4, 5, 1]
    assert [shard_of(user, 256) for user in (1, 2, 3)] == [143, 156, 55]


def test_a_shard_has_the_same_tag_in_every_release() -> None:
    first = ["im105", "im273", "im104", "im272", "im178", "im412", "im179", "im413"]
    assert [tag(shard) for shard in range(8)] == first
    assert tag(MAX_SHARDS - 1) == "im155"


def test_the_first_senders_of_a_rollout_are_the_same_in_every_release() -> None:
    assert [user for user in range(1, 60) if in_rollout(user, 10)] == [12, 18, 20, 24, 47, 50]


def test_senders_are_spread_evenly() -> None:
    counts = Counter(shard_of(user, 8) for user in range(8000))
    assert len(counts) == 8
    assert max(counts.values()) < 1.15 * 1000
    assert min(counts.values()) > 0.85 * 1000


@given(USERS, st.integers(1, MAX_SHARDS))
def test_every_sender_has_a_shard(user: int, shards: int) -> None:
    assert 0 <= shard_of(user, shards) < shards
    assert shard_of(user, 1) == 0


def test_no_two_shards_share_a_tag_or_a_slot() -> None:
    tags = [tag(shard) for shard in range(MAX_SHARDS)]
    assert len(set(tags)) == MAX_SHARDS
    assert len({slot_of(f"{{{name}}}") for name in tags}) == MAX_SHARDS


@for_each(product([1, 2, 4, 8, 16, 32], [1, 2, 3, 4, 5, 6]))
def test_the_shards_are_spread_evenly_over_the_masters_of_a_cluster(shards: int, masters: int) -> None:
    """Each master has an equal range of slots, as `redis-cli --cluster create` gives them."""
    counts = Counter(slot_of(f"{{{tag(shard)}}}") * masters // SLOTS for shard in range(shards))
    spread = [counts[master] for master in range(masters)]
    assert max(spread) - min(spread) <= 1, spread


@given(USERS, st.integers(0, 100), st.integers(0, 100))
def test_senders_of_a_small_rollout_are_in_a_larger_one(user: int, one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert not in_rollout(user, less) or in_rollout(user, more)
    assert in_rollout(user, 100)
    assert not in_rollout(user, 0)


def test_a_rollout_reaches_the_share_of_senders_it_says() -> None:
    for percent in (1, 10, 50, 99):
        reached = sum(in_rollout(user, percent) for user in range(20_000)) / 200
        assert abs(reached - percent) < 1.5


def test_the_rollout_does_not_follow_the_shards() -> None:
    reached = Counter(shard_of(user, 8) for user in range(8000) if in_rollout(user, 50))
    assert all(400 < count < 600 for count in reached.values())


# -- who works which shard


def test_no_shard_is_assigned_without_instances() -> None:
    assert assign(8, []) == {}


@given(st.integers(1, 64), NAMES)
def test_every_shard_has_one_owner_and_shares_differ_by_at_most_one(shards: int, names: set[str]) -> None:
    found = assign(shards, names)
    assert sorted(found) == list(range(shards))
    counts = Counter(found.values())
    shares = [counts[name] for name in names]
    assert sum(shares) == shards
    assert max(shares) - min(shares) <= 1


def test_assignment_is_independent_of_the_order_of_instances() -> None:
    orders = [assign(8, list(order)) for order in permutations("abcd")]
    assert all(found == orders[0] for found in orders)
    assert assign(8, ["a", "b", "a", "b"]) == assign(8, ["b", "a"]), "a name that is given twice is one instance"


@given(st.integers(1, 64), NAMES)
def test_one_alone_works_all_and_the_assignment_does_not_depend_on_chance(shards: int, names: set[str]) -> None:
    assert assign(shards, names) == assign(shards, sorted(names))
    alone = min(names)
    assert set(assign(shards, [alone]).values()) == {alone}


@for_each(product([8, 16, 64], [2, 3, 4, 5, 8]))
def test_when_one_joins_or_leaves_most_shards_stay_where_they_are(shards: int, instances: int) -> None:
    """The new one's share has to move; what moves beside it is less than half of all, in every of many clusters."""
    moves = []
    for trial in range(30):
        names = [f"{trial}-{number}" for number in range(instances)]
        before, after = assign(shards, names), assign(shards, [*names, f"{trial}-new"])
        moves.append(sum(before[shard] != after[shard] for shard in before))
    share = shards / (instances + 1)
    assert sum(moves) / len(moves) < 2 * share + 0.5
    assert max(moves) <= share + shards / 2
