"""How patient the supervisor is, against how long an orderly stop may take."""

from dragoman.domain.limits.connections import ConnectionLimits
from dragoman.instance.instance import REDIS_TIMEOUT_S
from dragoman.supervisor.main import GRACE_S


def test_a_worker_whose_peers_do_not_follow_is_not_killed_while_it_takes_leave() -> None:
    close_s = ConnectionLimits().close_timeout_s
    sockets_s = close_s + close_s / 4  # the sweep that cuts them off comes round four times as often, at least
    requests_s = 2 * close_s  # may end by themselves, then are cancelled and waited for once more
    assert sockets_s + requests_s + REDIS_TIMEOUT_S < GRACE_S
