// The operators' API. The token lives in this tab and goes out in a header: never in an address, never to another host.

const KEPT = "dragoman.operator", PATIENCE_MS = 10_000;
let token = stored(), ahead = 0;

/** A token is needed, or it was not a valid one; the message says which. */
export class Denied extends Error {}

/** The server answered with a no, in one sentence. */
export class Refusal extends Error {}

/** Nobody answered. */
export class Silence extends Error {}

/** The server's time, in ms: the clock of this machine may be another one. */
export const now = () => Date.now() + ahead;

export const hasToken = () => token !== "";

export function useToken(text) {
  token = text.trim();
  try {
    if (token) sessionStorage.setItem(KEPT, token);
    else sessionStorage.removeItem(KEPT);
  } catch {
    // Kept in memory alone, then.
  }
}

export const get = (path, query = {}) => ask("GET", path + asked(query));
export const post = (path, body) => ask("POST", path, body);
export const remove = (path) => ask("DELETE", path);

/** One part of a path, whatever is in it. */
export const part = (text) => encodeURIComponent(text);

async function ask(method, path, body) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let answer, told;
  try {
    answer = await fetch(`/api/v1/${path}`, {
      method, headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    told = await answer.json();
    ahead = difference(answer.headers.get("Date"));
  } catch (error) {
    throw new Silence(error.message);
  }
  if (answer.status === 401) throw new Denied(token ? told.error : "");
  if (!answer.ok) throw new Refusal(told.error ?? answer.statusText);
  return told;
}

/** The header tells whole seconds: what is less than two may be nothing. */
function difference(date) {
  const found = Date.parse(date ?? "") - Date.now();
  return Math.abs(found) > 2000 ? found : 0;
}

function asked(query) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

function stored() {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}
