// One person's side of a chat: logging in, the messages with their ticks, and a line to write in.

import { Account, isPrivate, lookUp, minPassword, registration, wellKnown } from "./accounts.js";
import { Chat } from "./chat.js";
import { ask, options } from "./languages.js";
import { make } from "./transcript.js";
import { has, language, say, translate, word } from "./words.js";

const LOOK_MS = 2000;
const STEPS = ["accepted", "saved", "delivered", "read"];

export class Pane {
  /** `people` is shared by the panes of a page: name → id of those who logged in here. */
  constructor(template, { name, peer, people }) {
    this.root = template.content.firstElementChild.cloneNode(true);
    this.part = (name) => this.root.querySelector(`[data-part="${name}"]`);
    this.people = people;
    this.rows = new Map(); // by serverMsgId, of those that arrived
    this.mine = new Map(); // by clientMsgId
    this.left = []; // { by, to, unsent } of chats that ended
    this.root.dataset.pane = name;
    this.part("name").value = name;
    this.part("peer").value = peer;
    this.part("password-row").hidden = isPrivate;
    this.part("invite-row").hidden = registration !== "invite";
    this.part("rule").hidden = isPrivate;
    if (!isPrivate) say(this.part("rule"), `chat.rule.${registration}`, { length: minPassword });
    translate(this.root);
    this.listen();
    this.eyes = new IntersectionObserver((entries) => this.seen(entries), { threshold: 0.6 });
  }

  listen() {
    this.part("door").addEventListener("submit", (event) => (event.preventDefault(), this.enter()));
    this.part("line").addEventListener("submit", (event) => (event.preventDefault(), this.write()));
    this.part("body").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) event.preventDefault(), this.write();
    });
    this.part("lang").addEventListener("change", () => this.translate());
    addEventListener("language", () => this.languages());
    this.part("toggle").addEventListener("click", () => (this.away ? this.chat.start() : this.chat.stop()));
    document.addEventListener("visibilitychange", () => this.look());
  }

  get token() {
    return this.account?.current;
  }

  // ---- coming in

  async enter() {
    const name = this.part("name").value.trim(), peer = this.part("peer").value.trim();
    if (!name || !peer) return;
    if (name === peer) return this.warn("chat.self");
    const password = this.part("password").value || (isPrivate ? wellKnown(name) : "");
    if (!password) return this.warn("chat.password.needed");
    this.part("enter").disabled = true;
    this.warn("");
    try {
      this.account = await Account.login(name, password, this.part("invite").value.trim());
    } catch (denied) {
      this.denied(denied);
      return;
    } finally {
      this.part("enter").disabled = false;
    }
    this.people.set(name, this.account.id);
    this.root.dataset.user = this.account.id;
    this.peerName = peer;
    this.open();
  }

  denied({ code, message }) {
    if (code === 40100) this.part("password-row").hidden = false;
    const keys = [`chat.denied.${code}.${registration}`, `chat.denied.${code}`];
    this.warn(keys.find(has) ?? "chat.denied.other", { why: message });
  }

  open() {
    this.part("door").hidden = true;
    this.part("room").hidden = false;
    this.part("me").textContent = this.account.name;
    say(this.part("to"), "chat.to", { peer: this.peerName });
    this.part("window").href = `/try?as=${encodeURIComponent(this.account.name)}&to=${encodeURIComponent(this.peerName)}`;
    this.part("messages").replaceChildren();
    this.mine.clear();
    this.rows.clear();
    const unsent = this.takeUp();
    this.chat = new Chat(this.account, {
      state: (state) => this.state(state),
      message: (message) => this.arrived(message),
      receipt: (sent) => this.tick(this.mine.get(sent.clientMsgId), sent),
      over: (reason) => this.over(reason),
      translation: (translation) => this.translated(translation),
    }, unsent, this.part("lang").value);
    this.languages();
    for (const sent of unsent) this.own(sent);
    this.chat.start();
    this.find(this.chat);
    this.part("body").focus({ preventScroll: true });
  }

  /** The messages that the same user could not send to the same peer; no other user sees them. */
  takeUp() {
    const same = ({ by, to }) => by === this.account.id && to === this.peerName;
    const unsent = this.left.filter(same).flatMap((one) => one.unsent);
    this.left = this.left.filter((one) => !same(one));
    return unsent;
  }

  /** Find the id of the peer: a number, a user of this page, or a name that is looked up until it has logged in. */
  async find(chat) {
    if (chat !== this.chat || this.peer) return;
    const name = this.peerName;
    const id = /^\d+$/.test(name) ? name : this.people.get(name) ?? (this.expected(name) ? null : await lookUp(name));
    if (chat !== this.chat || this.peer) return;
    if (id) return this.meet(id);
    this.hint(id === undefined ? "chat.operators" : "chat.waiting", { peer: name });
    setTimeout(() => this.find(chat), LOOK_MS / (this.expected(name) ? 10 : 1));
  }

  /** Whether the other pane of this page is about to log in with this name. */
  expected(name) {
    const names = document.querySelectorAll('.pane [data-part="name"]');
    return [...names].some((field) => field !== this.part("name") && field.value.trim() === name);
  }

  async meet(id) {
    this.peer = id;
    this.root.dataset.peer = id;
    this.part("send").disabled = false;
    this.hint(this.part("messages").children.length ? "" : "chat.quiet");
    try {
      for (const said of (await this.account.history(id)).reverse()) this.remember(said);
      this.translate(false);
    } catch {
      // The chat works without its history.
    }
  }

  remember(said) {
    const id = String(said.serverMsgId);
    if (this.rows.has(id) || this.mine.has(said.clientMsgId)) return;
    const body = typeof said.content === "string" ? said.content : said.content?.body ?? "";
    if (String(said.fromUserId) !== this.account.id) {
      this.chat.seen.add(id);
      return this.show({ serverMsgId: id, from: String(said.fromUserId), body, ts: said.createdAt }, said.status === "READ", true);
    }
    const row = this.row("mine", body, said.createdAt, true);
    const delivered = said.status !== "SAVED";
    const sent = { to: this.peer, body, serverMsgId: id, clientMsgId: said.clientMsgId, accepted: true, saved: true, told: true };
    this.chat.sent.set(said.clientMsgId, Object.assign(sent, { delivered, read: said.status === "READ", tries: 1 }));
    this.mine.set(said.clientMsgId, row);
    this.tick(row, sent);
  }

  // ---- writing

  write() {
    const field = this.part("body"), body = field.value.trim();
    if (!body || !this.peer) return;
    field.value = "";
    this.own(this.chat.send(this.peer, body));
  }

  own(sent) {
    const row = this.row("mine", sent.body, sent.at);
    row.querySelector(".again").addEventListener("click", () => this.chat.again(sent));
    this.mine.set(sent.clientMsgId, row);
    this.tick(row, sent);
  }

  tick(row, sent) {
    if (!row) return;
    for (const step of STEPS) row.toggleAttribute(`data-${step}`, sent[step]);
    const reached = STEPS.filter((step) => sent[step]).pop() ?? (sent.tries && this.online ? "sent" : "waiting");
    row.dataset.state = sent.failed ? "failed" : reached;
    row.dataset.id = sent.serverMsgId ?? "";
    row.querySelector(".body").textContent = sent.body;
    const key = `chat.failed.${sent.failed}`;
    if (sent.failed) say(row.querySelector(".reached"), has(key) ? key : "chat.failed.other", { reason: sent.failed });
    else say(row.querySelector(".reached"), `tick.${reached}`);
    row.querySelector(".again").hidden = !sent.failed;
  }

  // ---- reading

  arrived(message) {
    if (!this.peer) this.meet(message.from);
    this.show(message);
  }

  show(message, read = false, before = false) {
    const row = this.row("theirs", message.body, message.ts, before);
    row.dataset.id = message.serverMsgId;
    if (message.from !== this.peer) {
      const other = make("span", "other");
      say(other, "chat.other", { id: message.from });
      row.querySelector(".foot").prepend(other);
    }
    this.rows.set(message.serverMsgId, { message, read, inView: false, row });
    if (message.translation) this.translated({ serverMsgId: message.serverMsgId, ...message.translation });
    this.eyes.observe(row);
  }

  // ---- in another language

  async languages() {
    const menu = this.part("lang"), chosen = menu.value, served = await ask();
    options(menu, served?.text ?? [], chosen);
    menu.prepend(new Option(word("chat.original"), "", false, !chosen));
    menu.disabled = false;
  }

  /** The messages of the other one in the chosen language, or as they are; `changed`: the choice is new. */
  translate(changed = true) {
    if (!this.chat) return;
    const lang = this.part("lang").value;
    if (changed) this.chat.translateInto(lang);
    for (const [id, { row, message }] of this.rows) {
      row.querySelector(".translation")?.remove();
      if (lang && message.body) this.chat.translate(id);
    }
  }

  translated({ serverMsgId, lang, body, reason }) {
    const row = this.rows.get(String(serverMsgId))?.row;
    if (!row || lang !== this.part("lang").value) return;
    row.querySelector(".translation")?.remove();
    const text = make("p", "translation");
    text.lang = lang;
    if (body) text.textContent = body;
    else say(text, has(`chat.untranslated.${reason}`) ? `chat.untranslated.${reason}` : "chat.untranslated.failed");
    text.toggleAttribute("data-reason", !body);
    row.querySelector(".body").after(text);
  }

  seen(entries) {
    for (const { target, isIntersecting } of entries) {
      const row = this.rows.get(target.dataset.id);
      if (row) row.inView = isIntersecting;
    }
    this.look();
  }

  /** A message counts as read when it is visible in a visible tab. */
  look() {
    if (document.visibilityState !== "visible") return;
    for (const row of this.rows.values()) {
      if (!row.inView || row.read) continue;
      row.read = true;
      this.chat.read(row.message);
    }
  }

  row(side, body, at, quiet = false) {
    const item = make("li", `message ${side}`), text = make("p", "body"), foot = make("p", "foot");
    const time = make("time"), when = new Date(Number(at) || at);
    time.dateTime = when.toISOString();
    time.textContent = when.toLocaleTimeString(language(), { hour: "2-digit", minute: "2-digit" });
    item.dataset.at = when.getTime();
    if (body) text.textContent = body;
    else say(text, "chat.erased");
    foot.append(time);
    if (side === "mine") foot.append(...ticks());
    item.append(text, foot);
    this.hint("");
    const list = this.part("messages");
    // The history may arrive after the first new message.
    const later = quiet ? [...list.children].find((other) => Number(other.dataset.at) > when.getTime()) : null;
    list.insertBefore(item, later ?? null);
    list.scrollTop = list.scrollHeight;
    if (!quiet && side === "theirs") this.part("live").textContent = `${this.peerName}: ${body}`;
    return item;
  }

  // ---- words

  state(state) {
    this.online = state === "online";
    this.away = state === "offline";
    this.root.dataset.state = state;
    say(this.part("state"), `chat.state.${state}`);
    say(this.part("toggle"), this.away ? "chat.return" : "chat.leave");
    for (const [id, row] of this.mine) this.tick(row, this.chat.sent.get(id));
  }

  over(reason) {
    this.part("door").hidden = false;
    this.part("room").hidden = true;
    this.root.dataset.state = "over";
    this.left.push({ by: this.account.id, to: this.peerName, unsent: this.chat.unsent });
    this.chat = this.peer = null;
    const key = `chat.over.${reason}`;
    this.warn(has(key) ? key : "chat.over.other", { reason });
  }

  warn(key, values) {
    say(this.part("warning"), key, values);
  }

  hint(key, values) {
    this.part("hint").hidden = !key;
    say(this.part("hint"), key, values);
  }
}

function ticks() {
  const dots = make("span", "ticks"), reached = make("span", "reached"), again = make("button", "again");
  dots.setAttribute("aria-hidden", "true");
  for (const step of STEPS) dots.append(make("i", step));
  again.type = "button";
  again.hidden = true;
  say(again, "chat.again");
  return [dots, reached, again];
}
