"""Owner keys are written again before they lapse; what has another owner by now is left to it."""

from dragoman.instance.services import Stores
from dragoman.services.upkeep.presence import Renewer


async def test_renewer_extends_owned_keys(stores: Stores) -> None:
    renewer = Renewer(stores.owners, "a", lambda: ["n"], lambda: ["s"])
    await stores.owners.claim_node("n", "a")
    await stores.owners.claim_session("s", "a")
    for key in (stores.keys.node_owner("n"), stores.keys.session_owner("s")):
        await stores.redis.call("PEXPIRE", key, 1000)
        await renewer.run_once()
        assert await stores.redis.call("PTTL", key) > 1000


async def test_renewer_writes_keys_again_that_redis_lost(stores: Stores) -> None:
    await Renewer(stores.owners, "a", lambda: ["n"], lambda: ["s"]).run_once()
    assert await stores.owners.node_owner("n") == "a"
    assert await stores.owners.session_owner("s") == "a"
    assert await stores.redis.call("PTTL", stores.keys.node_owner("n")) > 0


async def test_a_node_that_dialled_in_elsewhere_is_not_taken_back(stores: Stores) -> None:
    """Its old socket may stand here for a while yet."""
    await stores.owners.claim_node("n", "a")
    await stores.owners.claim_node("n", "b")
    await Renewer(stores.owners, "a", lambda: ["n"], list).run_once()
    assert await stores.owners.node_owner("n") == "b"


async def test_owning_nothing_is_no_work(stores: Stores) -> None:
    before = stores.redis.flushes
    await Renewer(stores.owners, "a", list, list).run_once()
    assert stores.redis.flushes == before


async def test_thousands_are_written_without_a_wait_for_each(stores: Stores) -> None:
    sessions = [f"s{number}" for number in range(2000)]
    before = stores.redis.flushes
    await Renewer(stores.owners, "a", list, lambda: sessions).run_once()
    assert stores.redis.flushes - before < 200
    assert await stores.owners.session_owner("s1999") == "a"
