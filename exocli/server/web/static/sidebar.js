// The list of conversations: open, rename, delete. On a narrow page it is a drawer.

import { ask } from "./dialogs.js";
import { $, h, icon, visible } from "./dom.js";

export class Sidebar {
  /** `actions`: open(id), rename(id, title), remove(id). */
  constructor(actions) {
    this.actions = actions;
    $("open-sidebar").addEventListener("click", () => this.toggle(true));
    $("close-sidebar").addEventListener("click", () => this.toggle(false));
    $("shade").addEventListener("click", () => this.toggle(false));
  }

  get open() {
    return $("app").classList.contains("drawer");
  }

  toggle(open) {
    if (open === this.open) return;
    $("app").classList.toggle("drawer", open);
    $("shade").hidden = !open;
    $("main").inert = open;
    $("open-sidebar").setAttribute("aria-expanded", String(open));
    $(open ? "close-sidebar" : "open-sidebar").focus();
  }

  /** `rows` = [{id, title}], `current` the id of the one that is shown, `busy` those that are written. */
  show(rows, current, busy) {
    const focused = document.activeElement?.closest?.("#conversations li")?.dataset.id;
    const what = document.activeElement?.dataset.what;
    $("conversations").replaceChildren(...rows.map((row) => this.#row(row, current, busy)));
    if (focused) $("conversations").querySelector(`[data-id="${focused}"] [data-what="${what}"]`)?.focus();
  }

  #row({ id, title }, current, busy) {
    const name = visible(title);
    const open = h("button", {
      type: "button",
      class: "open",
      dir: "auto",
      title: name,
      "data-what": "open",
      "aria-current": id === current ? "page" : null,
      onclick: () => this.actions.open(id),
    });
    open.append(name);
    if (busy.has(id)) open.append(h("span", { class: "dot", role: "img", "aria-label": "being written" }));
    return h("li", { "data-id": id }, open, this.#tool("pencil", `Rename ${name}`, () => this.#rename(id, title)), this.#tool("bin", `Delete ${name}`, () => this.#remove(id, name)));
  }

  #tool(sign, label, onclick) {
    const button = h("button", { type: "button", class: "icon tool", "aria-label": label, "data-what": sign, onclick });
    button.append(icon(sign));
    return button;
  }

  async #rename(id, title) {
    const answer = await ask({ title: "Rename", label: "Name", value: title, ok: "Rename" });
    if (answer) this.actions.rename(id, answer);
  }

  async #remove(id, name) {
    const text = `\u201c${name}\u201d will be gone from this browser.`;
    if ((await ask({ title: "Delete this chat?", text, ok: "Delete" })) !== null) this.actions.remove(id);
  }
}
