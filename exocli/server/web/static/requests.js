// What runs on the server, as `exo ps` shows it, with a cancel for each; and the models' health, on a
// ring rank by rank. Asks only while it is open.

import * as api from "./api.js";
import { openDialog } from "./dialogs.js";
import { h, number } from "./dom.js";
import { bytes, duration } from "./progress.js";
import { sentence } from "./reply.js";

const EVERY_MS = 1000;
/** A working rank gives a sign of life twice a second. */
const SILENT_S = 2;

export function openRequests() {
  const models = h("ul", { class: "cards", "aria-label": "Models" });
  const rows = h("ul", { class: "cards", "aria-label": "Requests" });
  const problem = h("p", { class: "note", role: "alert", hidden: true });
  const all = h("button", { type: "button", text: "Cancel all", hidden: true, onclick: () => act(api.cancelAll()) });
  let open = true;
  let timer = 0;

  async function act(promise) {
    await promise.catch(() => {}); // over already: the next look shows it
    await look();
  }

  async function look() {
    clearTimeout(timer);
    try {
      const [running, loaded] = await Promise.all([api.requests(), api.loaded()]);
      problem.hidden = true;
      keep(models, loaded.map(modelRow));
      const cancelOne = (id) => act(api.cancel(id));
      keep(rows, running.length ? running.map((row) => requestRow(row, cancelOne)) : [["", "Nothing runs."]]);
      all.hidden = running.length < 2;
    } catch (error) {
      problem.textContent = sentence(error);
      problem.hidden = false;
    }
    if (open) timer = setTimeout(look, EVERY_MS);
  }

  const body = [problem, h("h3", { text: "Models" }), models, h("h3", { text: "Requests" }), rows, all];
  openDialog("On the server", body, {
    wide: true,
    onclose: () => {
      open = false;
      clearTimeout(timer);
    },
  });
  look();
}

/** Rows [key, title, details, button?]; those that stay keep their elements, and so the focus. */
function keep(list, rows) {
  const old = new Map(Array.from(list.children, (item) => [item.dataset.key, item]));
  const items = rows.map(([key, title, details = "", button = null]) => {
    const item =
      old.get(key) ??
      h("li", { "data-key": key }, h("div", {}, h("p", { class: "name" }), h("p", { class: "muted" })), button);
    const [name, more] = item.querySelectorAll("p");
    name.textContent = title;
    more.textContent = details;
    return item;
  });
  for (const item of old.values()) if (!items.includes(item)) item.remove();
  items.forEach((item, index) => {
    if (list.children[index] !== item) list.insertBefore(item, list.children[index] ?? null);
  });
}

function requestRow(row, cancelOne) {
  const how = {
    prefill: `reading ${number(row.processed)} of ${number(row.total)} tokens`,
    decode: `writing, ${number(row.tokens)} tokens`,
  };
  const details = [how[row.phase] ?? row.phase, duration(row.age_s), row.client].join(" · ");
  const button = h("button", {
    type: "button",
    text: "Cancel",
    "aria-label": `Cancel request ${row.id}`,
    onclick: () => cancelOne(row.id),
  });
  return [row.id, `${row.model} · ${row.id.slice(0, 8)}`, details, button];
}

function modelRow(model) {
  const { facts } = model;
  const parts = [model.state === "idle" ? "not loaded" : model.state];
  if (model.memory) parts.push(bytes(model.memory));
  if (facts.device) parts.push(facts.device);
  if (model.restarts) parts.push(`restarted ${number(model.restarts)}×`);
  const lines = [parts.join(" · "), ...model.ranks.map(rankText)];
  if (model.error) lines.push(model.error.message);
  return [model.name, model.backend ? `${model.name} · ${model.backend}` : model.name, lines.join("\n")];
}

/** "rank 1 on mini: layers 10–19, 180 MB, well" */
function rankText({ rank, host, silent_s, facts }) {
  const parts = [];
  if (Array.isArray(facts.layers)) parts.push(`layers ${facts.layers[0]}–${facts.layers[1] - 1}`);
  if (facts.weight_bytes) parts.push(bytes(facts.weight_bytes));
  parts.push(silent_s > SILENT_S ? `silent for ${duration(silent_s)}` : "well");
  return `rank ${rank} on ${host}: ${parts.join(", ")}`;
}
