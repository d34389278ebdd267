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

async function run(store, mode, what) {
  const transaction = (await open()).transaction(store, mode);
  const request = what(transaction.objectStore(store));
  transaction.commit(); // a page that leaves cannot do so later
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
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
  await run("conversations", "readwrite", (store) => store.delete(id));
  await run("drafts", "readwrite", (store) => store.delete(id));
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

const LEFT = "exo.left.";

/** What a reply or a draft had when its page went away: a page that leaves has no time for the database. */
export function leave(id, what) {
  try {
    localStorage.setItem(LEFT + id, JSON.stringify(what));
  } catch {
    // Full or off: what was saved last stands.
  }
}

/** The same, once; or null. */
export function left(id) {
  try {
    const found = localStorage.getItem(LEFT + id);
    localStorage.removeItem(LEFT + id);
    return JSON.parse(found);
  } catch {
    return null;
  }
}

/** Small choices that new chats begin with. */
export function remembered() {
  try {
    return JSON.parse(localStorage.getItem("exo.settings")) ?? {};
  } catch {
    return {};
  }
}

export function remember(settings) {
  localStorage.setItem("exo.settings", JSON.stringify(settings));
}
