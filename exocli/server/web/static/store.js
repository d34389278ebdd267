// Conversations and drafts, kept in this browser (IndexedDB), and word of changes to its other tabs.

const NAME = "exo";
const channel = new BroadcastChannel("exo");
let opening = null;

function open() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("drafts", { keyPath: "id" });
    };
    request.onsuccess = () => {
      request.result.onclose = () => (opening = null); // its data was cleared under us: begin anew
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  });
  return opening;
}

/** Ends when the data is kept, not when it was handed over: a full disk shows only then. */
async function run(store, mode, what) {
  const transaction = (await open()).transaction(store, mode);
  const request = what(transaction.objectStore(store));
  transaction.commit(); // a page that leaves cannot do so later
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = () => reject(transaction.error);
  });
}

/** Newest first, without their messages. */
export async function list() {
  const all = await run("conversations", "readonly", (store) => store.getAll());
  return all
    .map(({ id, title, updated }) => ({ id, title, updated }))
    .sort((a, b) => b.updated - a.updated);
}

export const load = (id) => run("conversations", "readonly", (store) => store.get(id));

export async function save(record) {
  await run("conversations", "readwrite", (store) => store.put(record));
  channel.postMessage(record.id);
}

export async function remove(id) {
  forget(id);
  forget(DRAFT + id);
  // At once, not one after the other: the page may be left in between.
  await Promise.all(["conversations", "drafts"].map((name) => run(name, "readwrite", (store) => store.delete(id))));
  channel.postMessage(id);
}

/** `changed(id)`: another tab saved or removed that conversation. */
export function onChange(changed) {
  channel.addEventListener("message", (event) => changed(event.data));
}

export const loadDraft = (id) => run("drafts", "readonly", (store) => store.get(id));

export function saveDraft(id, text, files) {
  if (!text && !files.length) return run("drafts", "readwrite", (store) => store.delete(id));
  return run("drafts", "readwrite", (store) => store.put({ id, text, files }));
}

const LEFT = "left.";
export const DRAFT = "draft.";

/** What a conversation's reply, or its draft (DRAFT + id), had when its page went away: a page that leaves
 *  has no time for the database. */
export const leave = (id, what) => write(LEFT + id, what);

/** The same, or null. It stays until `forget`, for a page that is left again before the database has it. */
export const left = (id) => read(LEFT + id);

export const forget = (id) => write(LEFT + id, null);

/** Small choices that new chats begin with. */
export const remembered = () => read("settings") ?? {};

export const remember = (settings) => write("settings", settings);

/** theme.js reads it before the first paint. */
export const rememberTheme = (theme) => write("theme", theme);

// -------------------------------------------------------------------------------- localStorage

function read(name) {
  try {
    return JSON.parse(localStorage.getItem(`exo.${name}`));
  } catch {
    return null; // off, or not ours
  }
}

function write(name, value) {
  try {
    if (value === null) localStorage.removeItem(`exo.${name}`);
    else localStorage.setItem(`exo.${name}`, JSON.stringify(value));
  } catch {
    // Full or off: what was written last stands.
  }
}
