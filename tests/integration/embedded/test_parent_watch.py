"""Nothing that is started here outlives the process that started it."""

import json
import os
import signal
import sys

import pytest

from dragoman.embedded.parent_watch import Child
from support.waiting import Descendants, StartParent, alive, wait_for

WAYS = [pytest.param("0", marks=pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG")), "1"]


@pytest.mark.parametrize("watch", WAYS)
def test_a_child_dies_with_its_parent_killed_9(start_parent: StartParent, watch: str) -> None:
    parent, child = start_parent("sleeper", watch)
    assert alive(child)
    parent.kill()
    parent.wait()
    wait_for(lambda: not alive(child), "the child to die")


def test_a_child_outlives_the_thread_that_started_it_but_not_the_process(
    start_parent: StartParent,
) -> None:
    parent, child = start_parent("thread")
    assert alive(child)
    parent.kill()
    parent.wait()
    wait_for(lambda: not alive(child), "the child to die")


def test_a_watcher_goes_with_the_child_it_watches() -> None:
    child = Child([sys.executable, "-c", "import signal; signal.pause()"], dies_by=signal.SIGKILL, watch=True)
    below = Descendants()
    [watcher] = wait_for(lambda: below.of(child.pid), "the watcher")
    child.signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    wait_for(lambda: not alive(watcher), "the watcher to end")
    child.close()


@pytest.mark.parametrize("watch", [False, True])
def test_a_child_has_a_session_of_its_own_and_only_the_descriptors_it_was_given(watch: bool) -> None:
    if not watch and sys.platform != "linux":
        pytest.skip("PR_SET_PDEATHSIG")
    read_end, write_end = os.pipe()
    tell = f"import os, json; os.write({write_end}, json.dumps([os.getsid(0), os.listdir('/dev/fd')]).encode())"
    child = Child([sys.executable, "-c", tell], dies_by=signal.SIGKILL, watch=watch, pass_fds=(write_end,))
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        session, descriptors = json.load(pipe)
    assert child.wait() == 0
    child.close()
    assert session == child.pid
    # Three streams, the pipe, and the one that lists them.
    assert len(descriptors) == 5
