"""What must be resent before anything newer: each object against a simple reference, and the hard cases by name."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dragoman.domain.chat import delivery_state
from dragoman.domain.chat.delivery_state import MAX_QUEUED, ConnectionState, DeliveryState, SenderState

HERE, THERE = "i0|1", "i1|7"
USERS = st.integers(1, 4)
INSTANCES = st.sampled_from(["i1", "i2"])


# -- the receivers of an instance ------------------------------------------------------------------


class Receivers(RuleBasedStateMachine):
    """Beside the state a reference that knows one thing of each receiver: where its resend stands.

    A receiver is in at most one request an instance; it may need a resend in several places at once, because it moved.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = DeliveryState("i0")
        self.unlocated: set[int] = set()
        self.remote: dict[str, set[int]] = {}
        self.requested: dict[str, str] = {}
        self.entries = 0

    @rule(users=st.sets(USERS))
    def redis_does_not_answer(self, users: set[int]) -> None:
        self.state.not_located(users)
        self.unlocated |= users

    @rule(instance=INSTANCES, users=st.sets(USERS, min_size=1))
    def inbox_is_full(self, instance: str, users: set[int]) -> None:
        self.state.not_pushed(instance, users)
        self.remote[instance] = self.remote.get(instance, set()) | users

    @rule(asked=st.sets(USERS), places=st.dictionaries(USERS, st.sampled_from(["i0", "i1", "i2"])))
    def users_are_located(self, asked: set[int], places: dict[int, str]) -> None:
        found = {user: f"{place}|3" for user, place in places.items() if user in asked}
        local = self.state.located(asked, found)
        assert local == sorted(user for user in asked & self.unlocated if places.get(user) == "i0")
        for user in asked & self.unlocated:
            if places.get(user, "i0") != "i0":
                self.remote.setdefault(places[user], set()).add(user)
        self.unlocated -= asked

    @rule(instance=INSTANCES, outcome=st.sampled_from(["taken", "full", "unknown", "gone"]))
    def a_resend_is_requested(self, instance: str, outcome: str) -> None:
        users = self.state.take_remote(instance)
        assert set(users) == self.remote.pop(instance, set())
        if not users:
            return
        if outcome == "taken":
            self.entries += 1
            self.state.requested(instance, str(self.entries), users)
            self.requested[instance] = str(self.entries)
        elif outcome == "full":
            self.inbox_is_full(instance, set(users))
        elif outcome == "unknown":
            self.redis_does_not_answer(set(users))

    @precondition(lambda self: self.requested)
    @rule(data=st.data(), is_latest=st.booleans())
    def an_instance_handles_a_request(self, data: st.DataObject, is_latest: bool) -> None:
        """An answer about an earlier request says nothing about the latest."""
        instance = data.draw(st.sampled_from(sorted(self.requested)))
        entry = self.requested[instance]
        self.state.acknowledged(instance, entry if is_latest else "0")
        if is_latest:
            del self.requested[instance]

    @invariant()
    def it_knows_what_the_reference_knows(self) -> None:
        assert self.state.unlocated() == sorted(self.unlocated)
        assert sorted(self.state.instances_to_ask()) == sorted(self.remote)
        assert self.state.requests_to() == sorted(self.requested.items())
        assert self.state.requests_to(["i1"]) == [one for one in self.requested.items() if one[0] == "i1"]
        for user in range(1, 5):
            assert self.state.is_unlocated(user) == (user in self.unlocated)
            unasked = {instance for instance, users in self.remote.items() if user in users}
            assert (self.state.unasked([user]) in unasked) if unasked else (self.state.unasked([user]) == "")
        assert self.state.pending == bool(self.unlocated or self.remote or self.requested)


TestReceivers = Receivers.TestCase
TestReceivers.settings = settings(stateful_step_count=30)


def test_first_message_to_each_receiver_after_a_move_needs_a_resend() -> None:
    sender = SenderState()
    assert not sender.is_first_since_move(2)
    sender.moved()
    assert [sender.is_first_since_move(receiver) for receiver in (2, 3, 2)] == [True, True, False]


# -- one connection --------------------------------------------------------------------------------

SENDERS = 2


class Receiver(RuleBasedStateMachine):
    """One connection beside an archive. Each message is saved; it is also pushed, early or late, or the push is missed.

    Whatever happens: a sender's messages reach the connection in their order, none twice, and when every pause has
    ended and every missed push was followed by a resend, all of them have.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = ConnectionState()
        self.pauses, self.reading = 1, False
        self.archive: list[tuple[int, int]] = []  # (id, sender), in the order of ids
        self.acknowledged: set[int] = set()
        self.sent: list[int] = []
        self.missed = False
        self.last = 0

    def _frames(self, frames: list[bytes]) -> None:
        self.sent += [int(frame) for frame in frames]

    def _next(self, sender: int) -> tuple[int, int, bytes]:
        self.last += 1
        self.archive.append((self.last, sender))
        return self.last, sender, str(self.last).encode()

    @precondition(lambda self: not self.missed)
    @rule(sender=st.integers(1, SENDERS))
    def a_message_is_pushed(self, sender: int) -> None:
        id, sender, frame = self._next(sender)
        if self.state.push(id, sender, frame):
            self.sent.append(id)

    @rule(sender=st.integers(1, SENDERS))
    def a_push_is_missed(self, sender: int) -> None:
        """From now on nothing is pushed until a resend was requested: that is what `DeliveryState` is for."""
        self._next(sender)
        self.missed = True

    @precondition(lambda self: self.missed)
    @rule()
    def it_is_asked_for_a_resend(self) -> None:
        self.state.pause()
        self.pauses += 1
        self.missed = False

    @precondition(lambda self: self.pauses and not self.missed)
    @rule()
    def a_pause_ends(self) -> None:
        self.pauses -= 1
        begins = self.state.resume()
        assert begins == (self.pauses == 0 and not self.reading)
        self.reading = self.reading or begins

    @precondition(lambda self: self.reading)
    @rule(pushed_meanwhile=st.lists(st.integers(1, SENDERS), max_size=3))
    def the_archive_is_read(self, pushed_meanwhile: list[int]) -> None:
        if not self.state.next_pass():
            self._frames(self.state.end_resend())
            self.reading = False
            return
        page = [one for one in self.archive if one[0] not in self.acknowledged]
        if not self.missed:
            for sender in pushed_meanwhile:
                self.a_message_is_pushed(sender)
        self.sent += [id for id, sender in page if self.state.deliver(id, sender)]
        self._frames(self.state.end_pass())

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def a_message_is_acknowledged(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.sent))
        covered = self.state.acknowledge(id)
        senders = dict(self.archive)
        assert covered[-1] == id
        assert set(covered) <= {one for one in self.sent if senders[one] == senders[id] and one <= id}
        self.acknowledged |= set(covered)

    @invariant()
    def order_holds_and_nothing_is_sent_twice(self) -> None:
        senders = dict(self.archive)
        for sender in range(1, SENDERS + 1):
            theirs = [id for id in self.sent if senders[id] == sender]
            assert theirs == sorted(set(theirs))
            assert theirs == [id for id, one in self.archive if one == sender][: len(theirs)], "one was overtaken"

    @invariant()
    def at_rest_everything_was_sent(self) -> None:
        if not (self.pauses or self.reading or self.missed):
            assert len(self.sent) == len(self.archive)
            assert not self.state.resending

    def teardown(self) -> None:
        if self.missed:
            self.it_is_asked_for_a_resend()
        while self.pauses:
            self.a_pause_ends()
        while self.reading:
            self.the_archive_is_read([])
        self.order_holds_and_nothing_is_sent_twice()
        self.at_rest_everything_was_sent()


TestReceiver = Receiver.TestCase
TestReceiver.settings = settings(stateful_step_count=30)


@given(extra=st.integers(1, 3))
def test_pushes_that_do_not_fit_the_queue_are_resent_from_the_archive(extra: int) -> None:
    state = ConnectionState()
    ids = range(1, delivery_state.MAX_QUEUED + extra + 1)
    assert state.resume()
    assert state.next_pass()
    for id in ids:
        assert not state.push(id, 1, str(id).encode())
    frames = state.end_pass()
    assert len(frames) == delivery_state.MAX_QUEUED
    assert state.next_pass(), "what did not fit is read from the archive"
    assert [id for id in ids if state.deliver(id, 1)] == list(ids)[-extra:]
    assert state.end_pass() == []
    assert not state.next_pass()


def test_connection_starts_paused_so_that_the_resend_of_its_auth_comes_first() -> None:
    state = ConnectionState()
    assert not state.push(2, 1, b"2")
    assert state.resume()
    assert state.next_pass()
    assert state.deliver(1, 1)
    assert state.end_pass() == [b"2"]


def test_message_that_was_pushed_before_it_was_saved_is_not_sent_again_by_the_resend() -> None:
    state = ConnectionState()
    state.resume()
    state.next_pass()
    state.end_pass()
    state.end_resend()
    assert state.push(1, 1, b"1")
    assert state.request_resend()
    assert state.next_pass()
    assert not state.deliver(1, 1)


def test_unacknowledged_message_is_sent_again_on_purpose_and_an_acknowledged_one_is_not() -> None:
    state = ConnectionState()
    assert state.deliver(1, 1)
    assert state.deliver(2, 1)
    assert state.acknowledge(1) == (1,)
    assert [state.deliver(id, 1, again=True) for id in (1, 2)] == [False, True]


def test_acknowledgement_of_an_unknown_message_covers_it_alone() -> None:
    assert ConnectionState().acknowledge(9) == (9,)


def test_message_that_is_not_saved_is_written_only_behind_the_one_before_it() -> None:
    state = ConnectionState()
    assert state.may_push_early(0)
    assert not state.push(7, 1, b"")
    assert (state.may_push_early(7), state.may_push_early(5)) == (True, False), "behind 7, in the queue"
    state.resume()
    state.next_pass()
    state.end_resend()
    assert state.may_push_early(0)
    assert not state.may_push_early(5)
    state.deliver(5, 1)
    assert state.may_push_early(5)
    state.acknowledge(5)
    assert state.may_push_early(5)
    state.pause()
    for number in range(MAX_QUEUED):
        assert state.may_push_early(0)
        state.push(100 + number, 1, b"")
    assert not state.may_push_early(0), "it does not fit, and is not in the archive"
