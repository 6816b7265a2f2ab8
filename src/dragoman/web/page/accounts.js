// A chat account: login, access token, history, and the lookup of other users.

const REFRESH_BEFORE_S = 60;
const ANSWER_MS = 10000;

export class Denied extends Error {
  /** `code` of the server: 40100 wrong password, 42900 too many attempts, …; 0: no answer. */
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const told = document.querySelector('meta[name="dragoman-accounts"]');

/**
 * Who may create an account, as the server says: `private`, `open`, `closed` or `invite`. `private`: only this machine can
 * connect, so the page uses a password that everybody can guess: good for trying it, and for nothing else.
 */
export const registration = told.content;
export const isPrivate = registration === "private";
export const minPassword = told.dataset.minPassword;
export const wellKnown = (name) => `${name}-of-this-machine`;

export class Account {
  static async login(name, password, invite) {
    const body = { username: name, password, ...(invite && { invite }) };
    return new Account(name, await ask("/auth/login", { body }));
  }

  constructor(name, told) {
    this.name = name;
    this.id = String(told.userId);
    this.refreshToken = told.refreshToken;
    this.take(told);
  }

  get current() {
    return this.access;
  }

  take(told) {
    this.access = told.accessToken;
    this.lastsS = told.accessTokenExpiresInSeconds ?? Infinity;
    this.goodUntil = performance.now() + this.lastsS * 1000;
  }

  /** A token that does not expire soon. */
  async token(renew = false) {
    const leftS = (this.goodUntil - performance.now()) / 1000;
    if (renew || leftS < Math.min(REFRESH_BEFORE_S, this.lastsS / 2)) {
      this.take(await ask("/auth/refresh", { body: { refreshToken: this.refreshToken } }));
    }
    return this.access;
  }

  /** Newest first. */
  async history(peer, limit = 30) {
    const token = await this.token();
    return ask(`/single-chat/message/cursor?peerUserId=${peer}&limit=${limit}`, { token });
  }
}

/** The id of a user; null: no user of this name has logged in yet; `undefined`: only operators may ask. */
export async function lookUp(name) {
  const answer = await fetch(`/api/v1/chat/users/${encodeURIComponent(name)}`);
  if (answer.status === 401) return undefined;
  return answer.ok ? String((await answer.json()).userId) : null;
}

async function ask(path, { body, token }) {
  const headers = {};
  if (body) headers["Content-Type"] = "application/json";
  if (token) headers.Authorization = `Bearer ${token}`;
  let told;
  try {
    const method = body ? "POST" : "GET", signal = AbortSignal.timeout(ANSWER_MS);
    const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
    told = await answer.json();
  } catch {
    throw new Denied(0, "");
  }
  if (!told.ok) throw new Denied(told.code, told.message);
  return told.data;
}
