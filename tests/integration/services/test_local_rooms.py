"""The members of rooms on one instance and the log: no entry twice, also for one that has more than the others."""

from dragoman.domain.rooms import Member
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.rooms.local_room import LocalMember
from dragoman.services.rooms.local_rooms import LocalRooms
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.rooms.rooms import Appended, RoomBounds, Rooms
from support.in_process import RecordingSocket


async def test_member_that_joins_again_gets_no_entry_twice_that_its_new_instance_has_not_seen(
    redis: Redis, keys: Keys
) -> None:
    """The instance of the writer was killed after it had delivered its own entry, and before it pushed the entry."""
    store = Rooms(redis, keys, RoomBounds())
    said = {"tenant": "t", "creator": "p", "settings": b"{}", "log_epoch": "e"}
    await store.create("r", "123456", persistent=False, locked=False, **said)  # type: ignore[arg-type]
    writer = Member("s1", "a", 0, "Ann", "en", "en", "p")
    await store.join("r", writer)
    local = LocalRooms(store, Metrics(), Tasks())
    room = await local.open("r", 0)
    assert room is not None
    appended = await store.append_original("r", "s1:t1", "s1", 0, lang="en", text="hello", about=b"{}")
    assert isinstance(appended, Appended)
    member = LocalMember(writer, socket := RecordingSocket(), "trace", None)
    local.add(room, member)
    await local.send_from(room, member, appended.seq)
    await local.repair(room)
    assert (room.delivery.delivered, socket.of("caption")) == (1, [])
