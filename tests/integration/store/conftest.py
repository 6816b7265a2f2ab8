from collections.abc import Iterator
from pathlib import Path
from signal import SIGCONT

import pytest

from dragoman.embedded.engine import CHOOSE_PORT, RedisServer
from support.redis_servers import BINARIES, EVERY_KIND, RedisAt, redis_on

redis_at = redis_on(*EVERY_KIND)


@pytest.fixture(params=BINARIES)
def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisAt]:
    """A server of one test alone, which may kill it, hang it or lock it."""
    binary = request.getfixturevalue(request.param)
    with RedisServer(binary, tmp_path / "data", port=CHOOSE_PORT) as server:
        yield RedisAt("single", (server.tcp_url,), server=server)
        if server.running:
            server.child.signal(SIGCONT)
