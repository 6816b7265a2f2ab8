"""Chat from accept to saved as a model small enough to look at every order in which things can happen.

    sender ─▶ claim + append ─▶ accepted ─save stage─▶ rows
                                        └─▶ dead

One shard, one sender, two instances. A step here is one script of Redis, one transaction of SQL or one word to the
sender: what happens as a whole or not at all. Between any two of them an instance may crash, its lease may lapse
while it goes on believing in it, the sender may send again, the same or another text, or lose its connection.

What is not here: the off path and failing open, Redis losing what it said it had, pushes to receivers, receipts.
How the model is kept honest: `Batch`, which decides what SQL does with a repetition, is the one the archives use; for
the rest, ways through the model are walked by the stages, the scripts and a database themselves
(`chat_protocol_walk.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from dragoman.archive import NewMessage, SaveOutcome, SaveVerdict, Status, Stored
from dragoman.archive.rows import Batch
from model.explorer import Model, Step

SENDER, RECEIVER, ANOTHER = 7, 9, 10
NAMES = ("instance 1", "instance 2")


class Message(NamedTuple):
    """An entry of a stream; `id` is its serverMsgId, which no other entry ever has."""

    id: int
    key: str  # its clientMsgId
    body: str

    def __str__(self) -> str:
        return f"{self.key}={self.body} (id {self.id})"


def receiver_of(body: str) -> int:
    """What is sent as `z` goes to another receiver; other texts are other bodies for the same one."""
    return ANOTHER if body == "z" else RECEIVER


class Claim(NamedTuple):
    key: str
    id: int
    to: int
    body: str  # '' when the row is that of an earlier message
    saved: bool = False
    again: int = 0  # how often its sender asked once more while it was not saved


class Row(NamedTuple):
    id: int
    key: str
    body: str


class Todo(NamedTuple):
    """What a save stage does next: `commit`, `tell` and `done`; or `fail` and `move_to_dead`."""

    what: str
    messages: tuple[Message, ...]
    rows: tuple[int, ...] = ()  # the id of each one's row, once there is one
    heard: tuple[int, ...] = ()  # how often the sender of each has asked again, as far as this stage knows


class Worker(NamedTuple):
    """What an instance believes, and has in its hands. Lost in a crash."""

    fence: int = 0  # of the lease it believes in; 0: none
    read_to: int = 0  # the id of the last message it has read
    todo: tuple[Todo, ...] = ()


class Answer(NamedTuple):
    """To a message that was sent; on its way to the sender."""

    word: str  # 'accepted', 'saved' or 'mismatch'
    message: Message


class Left(NamedTuple):
    """What the world may still do."""

    sends: int
    crashes: int
    lapses: int
    breaks: int
    claims: int
    refusals: int

    def less(self, name: str) -> "Left":
        return self._replace(**{name: getattr(self, name) - 1})


class State(NamedTuple):
    left: Left
    # Redis
    claims: tuple[Claim, ...] = ()
    accepted: tuple[Message, ...] = ()
    dead: tuple[Message, ...] = ()
    lease: tuple[int, int] | None = None  # instance, fence
    fence: int = 0
    # SQL
    rows: tuple[Row, ...] = ()
    sql_fence: int = 0
    overtaken: bool = False  # whether anybody wrote with a fence below that
    bad: frozenset[int] = frozenset()  # what SQL refuses, to whoever tries: that is what the archives promise
    # instances
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    halfway: Message | None = None  # claimed and not appended: only with that bug
    # the sender, and what happened
    made: tuple[Message, ...] = ()  # everything that was ever appended
    online: bool = True
    answer: Answer | None = None
    waiting: frozenset[tuple[str, str]] = frozenset()  # sent on this connection, and not told what became of it
    told_accepted: frozenset[Message] = frozenset()
    told_saved: frozenset[tuple[str, int]] = frozenset()
    told_failed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Bound:
    """How much may happen; all of it in every order."""

    texts: tuple[str, ...]  # what may be sent: 'key=body', a new key only after those before it were sent
    sends: int
    crashes: int = 0
    lapses: int = 0  # of a lease whose holder goes on
    breaks: int = 0
    claims: int = 0  # that lapse
    refusals: int = 0  # messages the database refuses for good

    @property
    def first(self) -> State:
        return State(Left(self.sends, self.crashes, self.lapses, self.breaks, self.claims, self.refusals))


def model_of(bound: Bound, bug: str = "") -> Model[State]:
    return Model(bound.first, Chat(bound, bug).steps, broken, settled)


class Chat:
    """The steps; `bug` plants one of BUGS."""

    def __init__(self, bound: Bound, bug: str = "") -> None:
        assert not bug or bug in BUGS + HARMLESS
        self.bug = bug
        self.texts = [(key, body) for key, _, body in (text.partition("=") for text in bound.texts)]

    def steps(self, state: State) -> Iterator[Step[State]]:
        yield from self._sender(state)
        yield from self._lapses(state)
        for number in (0, 1):
            if state.workers[number].fence:
                yield from self._worker(state, number)
            elif self._may_take(state, number):
                yield Step((NAMES[number], "takes the lease"), _take(state, number))

    # -- the sender ------------------------------------------------------------------------------

    def _sender(self, state: State) -> Iterator[Step[State]]:
        left = state.left
        if state.halfway is not None:
            yield Step(("the sender's instance appends", state.halfway), _append(state, state.halfway))
            if left.crashes:
                after = _disconnected(state)._replace(halfway=None, left=left.less("crashes"))
                yield Step(("the sender's instance dies",), after, fair=False)
        elif state.answer is not None:
            word, message = state.answer
            yield Step(("the sender is told", word, "of", message), _answered(state))
        elif not state.online:
            yield Step(("the sender connects",), state._replace(online=True))
        elif left.sends:
            for key, body in self._may_send(state):
                after = self._send(state._replace(left=left.less("sends")), key, body)
                yield Step(("the sender sends", Message(0, key, body)), after, fair=False)
        if left.breaks and state.online and (state.waiting or state.answer is not None):
            after = _disconnected(state)._replace(left=left.less("breaks"))
            yield Step(("the sender's connection breaks",), after, fair=False)

    def _may_send(self, state: State) -> Iterator[tuple[str, str]]:
        sent = {message.key for message in state.made}
        for key, body in self.texts:
            yield key, body
            if key not in sent:
                return

    def _send(self, state: State, key: str, body: str) -> State:
        """accept_message.lua. Which id is drawn does not matter, as long as it is above the shard's last."""
        state = _expects(state, key, body)
        held = _claim_of(state, key)
        if held is None:
            message = Message(len(state.made) + 1, key, body)
            state = _with_claim(state, Claim(key, message.id, receiver_of(body), body))
            return state._replace(halfway=message) if self.bug == CLAIM_FIRST else _append(state, message)
        known = Message(held.id, key, body)
        if held.to != receiver_of(body):
            return _with_answer(state, "mismatch", known)
        if held.saved or self.bug == DUPLICATE_SAVED:
            return _with_answer(state, "saved", known)
        return _with_answer(_with_claim(state, held._replace(again=held.again + 1)), "accepted", known)

    # -- what time does --------------------------------------------------------------------------

    def _lapses(self, state: State) -> Iterator[Step[State]]:
        left = state.left
        if state.lease is not None:
            number, fence = state.lease
            if state.workers[number].fence != fence:
                yield Step(("the lease that", NAMES[number], "left behind lapses"), state._replace(lease=None))
            elif left.lapses:
                after = state._replace(lease=None, left=left.less("lapses"))
                yield Step(("the lease of", NAMES[number], "lapses, and it does not notice"), after, fair=False)
        if left.claims:
            for claim in state.claims:
                if not _being_finished(state, claim):
                    after = _without_claim(state._replace(left=left.less("claims")), claim.key)
                    yield Step(("the claim of", claim.key, "lapses"), after, fair=False)

    # -- an instance -----------------------------------------------------------------------------

    def _may_take(self, state: State, number: int) -> bool:
        """Both are alike: the first of all leases is taken by the first."""
        return bool(state.lease is None and state.accepted and (state.fence or number == 0))

    def _worker(self, state: State, number: int) -> Iterator[Step[State]]:
        worker, name = state.workers[number], NAMES[number]
        if state.left.crashes:
            after = _with_worker(state._replace(left=state.left.less("crashes")), number, Worker())
            yield Step((name, "dies"), after, fair=False)
        if worker.todo:
            yield from self._save(state, number)
        elif (after_read := self._read(state, number)) is not None:
            yield Step((name, "reads what was accepted"), after_read)

    def _fenced(self, state: State, number: int, script: str) -> bool:
        return state.lease != (number, state.workers[number].fence) and self.bug != f"{script} that is not fenced"

    def _read(self, state: State, number: int) -> State | None:
        """By position, and without comparing the lease: reading takes nothing. None: nothing to be had."""
        worker = state.workers[number]
        batch = tuple(message for message in state.accepted if message.id > worker.read_to)
        if self.bug == PENDING_FORGOTTEN and not worker.read_to and state.rows:
            batch = tuple(message for message in batch if message.id > max(row.id for row in state.rows))
        if not batch:
            return None
        return _with_worker(state, number, worker._replace(read_to=batch[-1].id, todo=self._begin(batch)))

    def _begin(self, batch: tuple[Message, ...]) -> tuple[Todo, ...]:
        own = tuple(message.id for message in batch)
        early = {SAVED_EARLY: "tell", ACKED_EARLY: "done"}.get(self.bug)
        commit = Todo("commit", batch)
        return (Todo(early, batch, own, (0,) * len(own)), commit) if early else (commit,)

    # -- the save stage --------------------------------------------------------------------------

    def _save(self, state: State, number: int) -> Iterator[Step[State]]:
        """`services/chat/save.py`, one call at a time."""
        name, worker = NAMES[number], state.workers[number]
        todo, rest = worker.todo[0], worker.todo[1:]
        what, messages = todo.what, todo.messages
        going_on = _with_worker(state, number, worker._replace(todo=rest))
        if what == "commit" and worker.fence < state.sql_fence and self.bug != NO_SQL_FENCE:
            yield Step((name, "is fenced by SQL, with", messages), _lost(state, number))
        elif what == "commit":
            if not any(message.id in state.bad for message in messages):
                yield Step((name, "writes", messages), self._commit(state, number, messages, rest))
            yield from self._refuse(state, number, messages, rest)
        elif what == "tell":
            yield Step((name, "tells saved of", messages), _tell_saved(going_on, todo))
        elif what == "fail":
            yield Step((name, "tells failed of", messages), _tell_failed(going_on, messages[0]))
        elif what == "done":
            yield Step((name, "is done with", messages), self._done(state, number, todo, rest))
        else:
            yield Step((name, "moves to dead", messages), self._move_to_dead(state, number, todo, rest))

    def _commit(self, state: State, number: int, messages: tuple[Message, ...], rest: tuple[Todo, ...]) -> State:
        """One transaction; what a row of each message became is decided by the archive's own code."""
        fence = state.workers[number].fence
        new, outcomes = write(state.rows, messages)
        overtaken = state.overtaken or fence < state.sql_fence
        state = state._replace(rows=state.rows + new, sql_fence=fence, overtaken=overtaken)
        good = [(one, row) for one, (fits, row) in zip(messages, outcomes, strict=True) if fits]
        todo = list[Todo]()
        if good:
            told, ids = tuple(one for one, _ in good), tuple(row for _, row in good)
            todo += [Todo("tell", told, ids), Todo("done", told, ids, (0,) * len(ids))]
        early = {SAVED_EARLY: "tell", ACKED_EARLY: "done"}.get(self.bug)
        todo = [one for one in todo if one.what != early]
        for one, (fits, _) in zip(messages, outcomes, strict=True):
            todo += [] if fits else self._giving_up(one)
        return _with_worker(state, number, state.workers[number]._replace(todo=(*todo, *rest)))

    def _refuse(
        self, state: State, number: int, messages: tuple[Message, ...], rest: tuple[Todo, ...]
    ) -> Iterator[Step[State]]:
        """Something among them cannot be written: found by halves, and given up when it is alone."""
        known = any(message.id in state.bad for message in messages)
        if not known:
            if not state.left.refusals or all(message.key in _keys(state.rows) for message in messages):
                return
            if len(messages) == 1:
                state = state._replace(left=state.left.less("refusals"), bad=state.bad | {messages[0].id})
        half = len(messages) // 2
        then = [Todo("commit", part) for part in (messages[:half], messages[half:])]
        todo = (*(then if half else self._giving_up(messages[0])), *rest)
        after = _with_worker(state, number, state.workers[number]._replace(todo=todo))
        yield Step((NAMES[number], "is refused by the database, with", messages), after, fair=known)

    def _giving_up(self, message: Message) -> list[Todo]:
        whats = ("move_to_dead", "fail") if self.bug == MOVED_FIRST else ("fail", "move_to_dead")
        return [Todo(what, (message,), (), (0,)) for what in whats]

    def _done(self, state: State, number: int, todo: Todo, rest: tuple[Todo, ...]) -> State:
        """finish_saved.lua"""
        if self._fenced(state, number, "a done"):
            return _lost(state, number)
        asked = list[tuple[Message, int, int]]()
        for message, row, heard in zip(todo.messages, todo.rows, todo.heard, strict=True):
            claim = _claim_of(state, message.key)
            own = claim is not None and claim.id == message.id and not claim.saved
            if message not in state.accepted:
                continue
            if claim is not None and own and claim.again > heard and self.bug != NOT_TOLD_AGAIN:
                asked.append((message, row, claim.again))
                continue
            state = state._replace(accepted=_without_message(state, message))
            if claim is not None and own:
                body = claim.body if row == message.id else ""
                state = _with_claim(state, claim._replace(id=row, saved=True, body=body))
        if asked:
            messages, rows, heard_now = (tuple(part) for part in zip(*asked, strict=True))
            rest = (Todo("tell", messages, rows), Todo("done", messages, rows, heard_now), *rest)
        return _with_worker(state, number, state.workers[number]._replace(todo=rest))

    def _move_to_dead(self, state: State, number: int, todo: Todo, rest: tuple[Todo, ...]) -> State:
        """move_to_dead.lua"""
        if self._fenced(state, number, "a move to dead"):
            return _lost(state, number)
        (message,), (heard,) = todo.messages, todo.heard
        claim = _claim_of(state, message.key)
        own = claim is not None and claim.id == message.id
        if message in state.accepted:
            if claim is not None and own and claim.again > heard and self.bug != NOT_NOTIFIED_AGAIN:
                rest = (Todo("fail", (message,)), Todo("move_to_dead", (message,), (), (claim.again,)), *rest)
            else:
                state = state._replace(accepted=_without_message(state, message), dead=(*state.dead, message))
                if own and self.bug != CLAIM_KEPT:
                    state = _without_claim(state, message.key)
        return _with_worker(state, number, state.workers[number]._replace(todo=rest))


CLAIM_FIRST = "claim before append"
DUPLICATE_SAVED = "saved told to a duplicate of an unsaved message"
NO_SQL_FENCE = "no fence in SQL"
SAVED_EARLY = "saved told before the commit"
ACKED_EARLY = "acknowledged to Redis before the commit"
PENDING_FORGOTTEN = "what another left pending is not read"
NOT_TOLD_AGAIN = "who asks between saved and done is not told again"
NOT_NOTIFIED_AGAIN = "who asks between failed and moved is not notified again"
MOVED_FIRST = "moved before its sender is notified"
CLAIM_KEPT = "a claim kept at the dead letter"
BUGS = (
    CLAIM_FIRST, DUPLICATE_SAVED, NO_SQL_FENCE, SAVED_EARLY, ACKED_EARLY, PENDING_FORGOTTEN, NOT_TOLD_AGAIN,
    NOT_NOTIFIED_AGAIN, MOVED_FIRST, CLAIM_KEPT,
)  # fmt: skip
# What these do, they do again or not at all: that they compare the lease is for the counts and for those who wait.
HARMLESS = ("a done that is not fenced", "a move to dead that is not fenced")


# -- what must be so -----------------------------------------------------------------------------


def broken(state: State) -> str:
    """The ledger: what was told against what is there."""
    rows = {row.id: row.key for row in state.rows}
    for message in state.made:
        if message not in state.accepted and (
            message not in state.dead and not any(_same(row, message) for row in state.rows)
        ):
            return f"{message} was accepted and is nowhere"
    for message in state.told_accepted:
        if message.id not in rows and not any(made.id == message.id and _same(made, message) for made in state.made):
            return f"accepted was told of {message}, which never was"
    for key, id in state.told_saved:
        if rows.get(id) != key:
            return f"saved was told of {key} (id {id}), which is no row"
    for id in state.told_failed:
        if id in rows:
            return f"failed was told of id {id}, which is a row"
    for message in state.dead:
        if message.id not in state.told_failed:
            return f"{message} is a dead letter and its sender does not know"
    if state.overtaken:
        return "an instance wrote after another with a higher fence"
    return _broken_rows(state.rows)


def _broken_rows(rows: tuple[Row, ...]) -> str:
    if len(_keys(rows)) < len(rows):
        return "a message is a row twice"
    for one, following in pairwise(rows):
        if following.id <= one.id:
            return f"{following.key} (id {following.id}) was saved after the later {one.key} (id {one.id})"
    return ""


def settled(state: State) -> bool:
    """Nothing is under way, and the sender knows what became of all it sent on this connection."""
    return not (
        state.accepted or state.waiting or state.answer or state.halfway or any(worker.todo for worker in state.workers)
    )


# -- small steps ---------------------------------------------------------------------------------


@lru_cache(maxsize=100_000)
def write(rows: tuple[Row, ...], messages: tuple[Message, ...]) -> tuple[tuple[Row, ...], tuple[tuple[bool, int], ...]]:
    """What the archives write of these messages, and of each whether it fits its row, and the id of that."""
    batch = Batch.of(
        [NewMessage(one.id, one.key, SENDER, receiver_of(one.body), "TEXT", one.body, 0) for one in messages]
    )
    keys, ids = {one.key for one in messages}, {one.id for one in messages}
    there = [_stored(row.id, row.key, row.body) for row in rows if row.key in keys or row.id in ids]
    new = [_stored(row.id, row.client_msg_id, row.body) for row in batch.missing(there)]
    outcomes: list[SaveOutcome] = batch.outcomes(new, there)
    fits = tuple((one.verdict is not SaveVerdict.MISMATCH, one.message.id) for one in outcomes)
    return tuple(Row(row.id, row.client_msg_id, row.body) for row in new), fits


def _stored(id: int, key: str, body: str) -> Stored:
    return Stored(id, 1, 1, SENDER, receiver_of(body), "TEXT", body, key, Status.SAVED, 0, 0)


def _same(one: Message | Row, other: Message) -> bool:
    """Of two with one clientMsgId to one receiver the first stands, whatever the body of the second is."""
    return one.key == other.key and receiver_of(one.body) == receiver_of(other.body)


def _without(waiting: frozenset[tuple[str, str]], *told: Message) -> frozenset[tuple[str, str]]:
    """What still waits when the sender has got an answer about these."""
    return frozenset(
        (key, body) for key, body in waiting if not any(_same(Message(0, key, body), message) for message in told)
    )


def _keys(rows: tuple[Row, ...]) -> set[str]:
    return {row.key for row in rows}


def _take(state: State, number: int) -> State:
    """take_lease.lua"""
    fence = max(state.fence, state.sql_fence) + 1
    return _with_worker(state._replace(lease=(number, fence), fence=fence), number, Worker(fence))


def _lost(state: State, number: int) -> State:
    """It is told that it is fenced, and drops everything; the lease, if it says that this one has it."""
    lease = None if state.lease == (number, state.workers[number].fence) else state.lease
    return _with_worker(state._replace(lease=lease), number, Worker())


def _append(state: State, message: Message) -> State:
    state = state._replace(accepted=(*state.accepted, message), made=(*state.made, message), halfway=None)
    return _with_answer(state, "accepted", message)


def _without_message(state: State, message: Message) -> tuple[Message, ...]:
    return tuple(one for one in state.accepted if one != message)


def _with_answer(state: State, word: str, message: Message) -> State:
    """It takes its time only where it can be lost on the way: when it comes is all the same."""
    state = state._replace(answer=Answer(word, message))
    return state if state.left.breaks else _answered(state)


def _expects(state: State, key: str, body: str) -> State:
    """Who has been told saved meanwhile, and sends all the same, does not wait for a second word."""
    if any(key == saved for saved, _ in state.told_saved):
        return state
    return state._replace(waiting=state.waiting | {(key, body)})


def _claim_of(state: State, key: str) -> Claim | None:
    for claim in state.claims:
        if claim.key == key:
            return claim
    return None


def _with_claim(state: State, claim: Claim) -> State:
    others = (one for one in state.claims if one.key != claim.key)
    return state._replace(claims=tuple(sorted((claim, *others))))


def _without_claim(state: State, key: str) -> State:
    return state._replace(claims=tuple(one for one in state.claims if one.key != key))


def _being_finished(state: State, claim: Claim) -> bool:
    """Whether somebody asked again of a message whose sender was told: the claim has a whole life from then on."""
    return bool(claim.again) and any(
        todo.what in ("done", "move_to_dead") and any(message.id == claim.id for message in todo.messages)
        for worker in state.workers
        for todo in worker.todo[:1]
    )


def _with_worker(state: State, number: int, worker: Worker) -> State:
    first, second = state.workers
    return state._replace(workers=(worker, second) if number == 0 else (first, worker))


def _answered(state: State) -> State:
    assert state.answer is not None
    word, message = state.answer
    state = state._replace(answer=None)
    if word == "accepted":
        return state._replace(told_accepted=state.told_accepted | {message})
    if word == "saved":
        state = state._replace(told_saved=state.told_saved | {(message.key, message.id)})
    return state._replace(waiting=_without(state.waiting, message))


def _tell_saved(state: State, todo: Todo) -> State:
    """Lost on a sender that is away: it will ask."""
    if not state.online:
        return state
    told = {(message.key, row) for message, row in zip(todo.messages, todo.rows, strict=True)}
    waiting = _without(state.waiting, *todo.messages)
    return state._replace(told_saved=state.told_saved | told, waiting=waiting)


def _tell_failed(state: State, message: Message) -> State:
    """Kept for a sender that is away."""
    told = state.told_failed | {message.id}
    return state._replace(told_failed=told, waiting=_without(state.waiting, message))


def _disconnected(state: State) -> State:
    """What was on its way to the sender is lost, and it expects nothing any more: it asks by sending again."""
    return state._replace(answer=None, waiting=frozenset(), online=False)
