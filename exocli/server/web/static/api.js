// The server's routes. Addresses are relative to the page; the key is kept for this tab's session only
// and travels in a header, never in an address.

const KEY = "exo.key";
let key = null;
let asking = null;
let ask = async () => null;

/** How to ask a person for the key: (whether one was refused) → key, or null. */
export function onKeyNeeded(how) {
  ask = how;
}

/** An answer that is an error. `message` is the server's own sentence. */
export class ApiError extends Error {
  constructor(status, message, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Nobody answers at all. */
export class Unreachable extends Error {
  constructor() {
    super("No server answers. Start it again with \u201cexo serve\u201d, then retry.");
  }
}

try {
  key = sessionStorage.getItem(KEY);
} catch {
  // Storage is off: the key is asked for again after a reload.
}

async function keyAgain(used) {
  if (key !== used) return true; // another call has asked meanwhile
  asking ??= ask(used !== null).finally(() => {
    asking = null;
  });
  const given = await asking;
  if (!given) return false;
  key = given;
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    // As above.
  }
  return true;
}

/** fetch, with the key. Throws ApiError, Unreachable, AbortError. */
export async function call(path, { headers = {}, ...options } = {}) {
  for (;;) {
    const used = key;
    const auth = used ? { Authorization: `Bearer ${used}` } : {};
    let response;
    try {
      response = await fetch(path, { ...options, headers: { ...headers, ...auth }, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Unreachable();
    }
    if (response.ok) return response;
    if (response.status === 401 && (await keyAgain(used))) continue;
    const found = await response.json().catch(() => ({}));
    const message = found.error?.message ?? `The server answers ${response.status}.`;
    throw new ApiError(response.status, message, found.error?.code);
  }
}

export const getJson = async (path, options) => (await call(path, options)).json();

const postJson = (path, options = {}) => getJson(path, { method: "POST", ...options });

/** → [{id, owned_by}]. Names with * stand for many and cannot be chosen; some models only make embeddings. */
export async function models() {
  const { data } = await getJson("v1/models");
  return data.filter(({ id, tasks }) => !id.includes("*") && (!tasks || tasks.includes("chat")));
}

export const requests = async () => (await getJson("v1/requests")).data;

/** → the receipt {state, phase, processed, total, kept_tokens, latency_ms …}. */
export const cancel = (id, options) => postJson(`v1/requests/${encodeURIComponent(id)}/cancel`, options);

export const cancelAll = () => postJson("v1/requests/cancel");

/** Loaded models and the health of all: [{name, backend, state, memory, facts, ranks, error, restarts}]. */
export async function loaded() {
  const [health, ps] = await Promise.all([healthRows(), getJson("api/ps")]);
  return health.map((row) => {
    const found = ps.models.find((one) => one.name === row.name || one.name === `${row.name}:latest`);
    const { backend, facts = {}, ranks = [] } = found?.exo ?? {};
    return { ...row, backend, memory: found?.size_vram, facts, ranks };
  });
}

async function healthRows() {
  const response = await fetch("health", { cache: "no-store" }); // 503 is an answer too
  return (await response.json()).models ?? [];
}
