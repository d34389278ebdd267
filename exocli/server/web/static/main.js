// The page: which chat is shown, and who tells whom. The parts know each other only through here.

import * as api from "./api.js";
import { Chat, newRecord } from "./chat.js";
import { Composer } from "./composer.js";
import { ask } from "./dialogs.js";
import { $, announce, h, number, toast, visible } from "./dom.js";
import * as markdown from "./markdown.js";
import { openRequests } from "./requests.js";
import { sentence } from "./reply.js";
import { openSettings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import * as store from "./store.js";
import { Transcript } from "./transcript.js";

const DRAFT_OF_NEW = "new";
const chats = new Map(); // by id: the one that is shown, and those with a reply on its way
let chat = null;

const composer = new Composer({ send, cancel: () => stop() });
const transcript = new Transcript({
  edit: (id, text) => asked(() => chat.edit(id, text)),
  again: () => asked(() => chat.again()),
  proceed: () => asked(() => chat.proceed()),
});
const sidebar = new Sidebar({ open: go, rename, remove });

// ---------------------------------------------------------------------------------- the shown chat

/** The address holds which one: a reload and a second tab find it again. */
function go(id) {
  sidebar.toggle(false);
  if (location.hash.slice(1) === id) show();
  else location.hash = id;
}

async function show() {
  const id = location.hash.slice(1);
  const record = chats.get(id)?.record ?? (id ? await store.load(id).catch(() => null) : null);
  if (id !== location.hash.slice(1)) return; // another click was faster
  if (chat && !chat.live) chats.delete(chat.record.id);
  chat = chats.get(record?.id) ?? follow(new Chat(record ?? newRecord(store.remembered())));
  chat.record.settings.model ??= $("model").value;
  transcript.show(chat);
  composer.open(record ? record.id : DRAFT_OF_NEW);
  change();
  list();
  chat.watch();
}

function follow(made) {
  chats.set(made.record.id, made);
  made.addEventListener("change", () => {
    if (made === chat) change();
    if (Boolean(made.live) !== made.wasLive) list();
    made.wasLive = Boolean(made.live);
  });
  made.addEventListener("taken-back", (event) => {
    if (made !== chat || !composer.empty) return toast("Stopped before the first word.");
    composer.set(event.detail.text, event.detail.files ?? []);
    return announce("Stopped. Your message is back in the box.");
  });
  made.addEventListener("receipt", (event) => {
    const { state, phase, processed, total } = event.detail;
    if (state === "cancelling") toast("The server is still stopping that reply.");
    else if (phase === "prefill" && made === chat) {
      toast(`Stopped after reading ${number(processed)} of ${number(total)} tokens.`);
    }
  });
  const unkept = () => toast("This browser does not keep the conversation: its storage is off or full.");
  made.addEventListener("unsaved", unkept, { once: true });
  return made;
}

function change() {
  const { record, live } = chat;
  const title = visible(record.title);
  $("title").textContent = title;
  document.title = record.messages.length ? `${title} · exo` : "exo";
  if (record.settings.model) $("model").value = record.settings.model;
  composer.working = Boolean(live);
  transcript.tell(chat);
  if (live) transcript.later();
  else transcript.draw();
}

async function send(text, files) {
  const fresh = chat.record.messages.length === 0;
  transcript.following = true;
  const sent = chat.send(text, files);
  if (fresh) {
    history.replaceState(null, "", `#${chat.record.id}`);
    composer.open(chat.record.id);
  }
  await sent;
}

/** One reply at a time: an edit, a retry or a going on waits for the end of the one on its way. */
function asked(anew) {
  if (chat.live) return toast("A reply is on its way. Cancel it first.");
  transcript.following = true;
  anew();
  toBox();
}

function stop() {
  chat.cancel();
  toBox();
}

/** On a phone the focus would open the keyboard over what one reads. */
function toBox() {
  if (!matchMedia("(pointer: coarse)").matches) $("input").focus();
}

// -------------------------------------------------------------------------------- conversations

let listing = 0;

/** Once in a while is enough: other tabs save every second while they write. */
function list() {
  clearTimeout(listing);
  return new Promise((resolve) => {
    listing = setTimeout(async () => {
      const rows = await store.list().catch(() => []);
      const busy = new Set([...chats.values()].filter((one) => one.live).map((one) => one.record.id));
      sidebar.show(rows, chat.record.id, busy);
      resolve();
    }, 50);
  });
}

async function rename(id, title) {
  const record = chats.get(id)?.record ?? (await store.load(id).catch(() => null));
  if (!record) return list(); // another tab has removed it
  const one = chats.get(id) ?? new Chat(record);
  Object.assign(record, { title, named: true });
  await one.save();
  change();
  list();
}

async function remove(id) {
  const one = chats.get(id);
  one?.cancel();
  chats.delete(id);
  await store.remove(id).catch(() => toast("This browser could not remove the chat: its storage fails."));
  if (chat.record.id === id) go("");
  else list();
}

store.onChange(async (id) => {
  if (!chat) return;
  list();
  if (id !== chat.record.id || (chat.live && !chat.live.elsewhere)) return;
  const there = await chat.reload();
  if (!there) go("");
  else chat.watch();
});

// ------------------------------------------------------------------------------------- the bar

async function fillModels() {
  try {
    const models = await api.models();
    const options = models.map(({ id, owned_by: backend }) => h("option", { value: id, text: `${id} · ${backend}` }));
    $("model").replaceChildren(...options);
    const chosen = chat.record.settings.model;
    if (!models.some((model) => model.id === chosen)) chat.record.settings.model = models[0]?.id;
    $("model").value = chat.record.settings.model ?? "";
  } catch (error) {
    toast(sentence(error), { label: "Retry", run: fillModels });
  }
}

function settled() {
  store.remember(chat.record.settings);
  if (chat.record.messages.length) chat.save();
}

$("model").addEventListener("change", () => {
  chat.record.settings.model = $("model").value;
  settled();
});
for (const id of ["new", "new-here"]) {
  $(id).addEventListener("click", () => {
    go("");
    $("input").focus();
  });
}
$("settings-button").addEventListener("click", () => openSettings(chat.record.settings, settled));
$("requests-button").addEventListener("click", openRequests);
$("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark" ||
    (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const theme = dark ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  store.rememberTheme(theme);
  announce(`${theme} colours`);
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (sidebar.open) sidebar.toggle(false);
  else if (chat?.live) stop();
});
addEventListener("hashchange", show);
addEventListener("pagehide", () => {
  for (const one of chats.values()) one.leave();
  composer.leave();
});
addEventListener("pageshow", (event) => event.persisted && location.reload()); // "back" to a page that was left

api.onKeyNeeded((refused) =>
  ask({
    title: "API key",
    text: refused ? "That key was not accepted." : "This server asks for a key. It is kept until this tab is closed.",
    label: "Key",
    secret: true,
    ok: "Use it",
  }),
);

await show();
for (const part of document.querySelectorAll("[inert]")) part.inert = false; // a click before had no chat to act on
$("input").focus();
fillModels();
markdown.load().then(() => transcript.rewrite());
