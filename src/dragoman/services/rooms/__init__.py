"""Rooms: one file for each step of a caption, in the order in which a caption passes them.

commands      what members write, and all other commands of clients: one after another for each session
speakers      what members say: the end of the job of an utterance is what is appended
room_log      `RoomLog`: append in Redis ─▶ the entry to every instance with members
              `Captions`: append ─▶ a text job per language (`speech/text_jobs`) ─▶ append its translation
local_rooms   the rooms with members on this instance; what was missed is read from the log
local_room    one of them: `domain/rooms` finds holes; one frame per kind and language ─▶ sockets

Beside the way: `membership` joins and leaves, `upkeep` ends what is overdue and closes rooms that are over. The scripts
are beside `store/rooms/rooms`.
"""
