"""The SDK for chat clients.

    from dragoman.client.chat import Chat, login

    account = await login("http://127.0.0.1:5010", "alice", "secret")
    async with Chat("ws://127.0.0.1:5010/ws", token=account.token) as chat:
        sent = await chat.send(to=2, body="hi")
        await sent.accepted
        await sent.saved
        async for message in chat.messages():
            print(message.from_user, message.body)
            chat.read(message)

After a lost connection the chat reconnects to any of its addresses. Messages that are not known to be saved are resent
under the same clientMsgId, so each arrives once and in order. Duplicates are dropped, and *delivered* receipts are sent
automatically.
"""

from dragoman.client.chat.accounts import Account, StoredMessage, login
from dragoman.client.chat.chat import Chat
from dragoman.client.chat.chat_connection import Timing
from dragoman.client.chat.messages import (
    AccessDenied,
    ChatClosed,
    ChatError,
    Kicked,
    Message,
    Receipt,
    SendFailed,
    Sent,
    Translation,
    Unreachable,
)
from dragoman.client.pacing import RateLimit

__all__ = [
    "AccessDenied",
    "Account",
    "Chat",
    "ChatClosed",
    "ChatError",
    "Kicked",
    "Message",
    "RateLimit",
    "Receipt",
    "SendFailed",
    "Sent",
    "StoredMessage",
    "Timing",
    "Translation",
    "Unreachable",
    "login",
]
