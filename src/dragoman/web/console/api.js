// The operators' API. The token stays in this tab and is sent in a header: never in a URL, never to another host.

const KEPT = "dragoman.operator", PATIENCE_MS = 10_000;
let token = stored(), ahead = 0;

/** A token is missing or not valid; the message says which. */
export class Denied extends Error {}

/** The server refused; the message is its sentence. */
export class Refusal extends Error {}

/** No answer. */
export class Silence extends Error {}

/** The server's time in ms: the clock of this machine may differ. */
export const now = () => Date.now() + ahead;

export const hasToken = () => token !== "";

export function useToken(text) {
  token = text.trim();
  try {
    if (token) sessionStorage.setItem(KEPT, token);
    else sessionStorage.removeItem(KEPT);
  } catch {
    // Then it stays in memory only.
  }
}

export const get = (path, query = {}) => ask("GET", path + asked(query));
export const post = (path, body) => ask("POST", path, body);
export const remove = (path) => ask("DELETE", path);

/** One part of a path, escaped. */
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

/** The header has whole seconds: a difference below two may be none. */
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
