// One Socket.IO server of `dragoman bench rooms`: node rooms_socketio.js FOLDER REDIS_URL PORT
// FOLDER has the packages. A reader joins rooms; a publisher names the room of each message.
"use strict";

const { createServer } = require("node:http");
const { createRequire } = require("node:module");

const [folder, redisUrl, port] = process.argv.slice(2);
const load = createRequire(`${folder}/`);
const { Server } = load("socket.io");
const { Redis } = load("ioredis");
const { createAdapter } = load("@socket.io/redis-streams-adapter");

const http = createServer();
const io = new Server(http, {
  adapter: createAdapter(new Redis(redisUrl)),
  serveClient: false,
  transports: ["websocket"],
});
io.on("connection", (socket) => {
  socket.on("join", (rooms, done) => {
    socket.join(rooms);
    done();
  });
  socket.on("publish", (room, message) => io.to(room).emit("message", message));
});
http.listen(Number(port), "127.0.0.1");
