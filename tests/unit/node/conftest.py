import pytest

from support.waiting import Enter
from unit.node.fake_scheduler import FakeScheduler, scheduler


@pytest.fixture
def fake(enter: Enter) -> FakeScheduler:
    return enter(scheduler())
