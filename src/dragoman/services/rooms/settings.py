"""What the host of a room has decided."""

import msgspec

from dragoman.store.rooms.rooms import RoomInfo


class RoomSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """`settings` of the room's info."""

    guests: bool = True
    vocabulary: tuple[str, ...] = ()


def settings_of(info: RoomInfo) -> RoomSettings:
    try:
        return msgspec.json.decode(info.settings, type=RoomSettings)
    except msgspec.DecodeError:
        return RoomSettings()
