"""A guest of a room: its name, its server, and its token if the server has a secret."""

import getpass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dragoman.cli.api import Api
from dragoman.cli.room import ROOMS

if TYPE_CHECKING:
    from dragoman.config import Config


def server_of(room: str) -> str:
    """The server in the link of a room; '' if it is not a link."""
    parts = urlsplit(room.strip())
    return f"{parts.scheme}://{parts.netloc}" if parts.scheme in ("http", "https") else ""


def user_name(otherwise: str) -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return otherwise


class Guest:
    """Asks the server for tokens."""

    def __init__(self, config: "Config", url: str, name: str) -> None:
        parts = urlsplit(url)
        self._base = f"{'https' if parts.scheme == 'wss' else 'http'}://{parts.netloc}"
        self._config, self._name, self.token, self.lifetime_s = config, name, "", 0.0

    def join(self, **room: str) -> tuple[str, str]:
        """The token ('' if the server needs none) and the id of the room; a guest that has a token gets a new one."""
        api = Api(self._config, self._base, self.token or None)
        answer = api.post(f"{ROOMS}/join", {**room, "name": self._name})
        self.token, self.lifetime_s = str(answer["token"]), float(answer["expires_in_s"])
        return self.token, str(answer["room_id"])
