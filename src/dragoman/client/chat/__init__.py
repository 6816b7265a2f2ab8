"""Chat from Python: ten lines.

    from dragoman.client.chat import Chat, login

    account = await login("http://127.0.0.1:5010", "alice", "secret")
    async with Chat("ws://127.0.0.1:5010/ws", token=account.token) as chat:
        sent = await chat.send(to=2, body="hi")
        await sent.accepted
        await sent.saved
        async for message in chat.messages():
            print(message.from_user, message.body)
            chat.read(message)

A lost connection is replaced by one to any of the addresses; what was not saved is sent again under its clientMsgId, so
it arrives once, and in order. Doubles are dropped, delivered receipts sent by themselves.
"""

from dragoman.client.chat.accounts import Account, Said, login
from dragoman.client.chat.chat import Chat
from dragoman.client.chat.errors import ChatError, ChatOver, Kicked, Refused, SendFailed, Unreachable
from dragoman.client.chat.inbox import Message
from dragoman.client.chat.keeper import Timing
from dragoman.client.chat.pace import Pace
from dragoman.client.chat.sent import Receipt, Sent

__all__ = [
    "Account",
    "Chat",
    "ChatError",
    "ChatOver",
    "Kicked",
    "Message",
    "Pace",
    "Receipt",
    "Refused",
    "Said",
    "SendFailed",
    "Sent",
    "Timing",
    "Unreachable",
    "login",
]
