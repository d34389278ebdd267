// The message box: text, attached files, the draft that outlives a reload, and the one button that is
// Send, or Cancel while a reply is on its way.

import { $, h, icon, toast, visible } from "./dom.js";
import * as store from "./store.js";

const MOST_BYTES = 4 << 20;
const DOUBLE_MS = 500;

export class Composer {
  #draft = null;
  #saving = 0;
  #since = 0;

  /** `send(text, files)` and `cancel()` are what the button does. */
  constructor({ send, cancel }) {
    this.files = [];
    this.busy = false;
    this.input = $("input");
    this.button = $("send");
    this.input.addEventListener("input", () => this.#changed());
    this.input.addEventListener("keydown", (event) => {
      const typed = matchMedia("(pointer: coarse)").matches; // a phone's Enter is a new line
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || typed) return;
      event.preventDefault();
      if (!this.busy) this.#send(send);
    });
    this.button.addEventListener("click", (event) => {
      event.preventDefault();
      if (!this.busy) this.#send(send);
      else if (event.detail < 2 || performance.now() - this.#since > DOUBLE_MS) cancel();
    });
    $("composer").addEventListener("submit", (event) => event.preventDefault());
    $("attach").addEventListener("click", () => $("picker").click());
    $("picker").addEventListener("change", () => {
      this.attach($("picker").files);
      $("picker").value = "";
    });
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      this.attach(event.dataTransfer.files);
    });
  }

  #send(send) {
    if (this.#draft === null) return; // the page has only begun
    const text = this.input.value.trim();
    if (!text && !this.files.length) {
      this.input.focus();
      return;
    }
    const { files } = this;
    this.set("", []);
    send(text, files);
  }

  /** The same place, the same button: only its word changes. */
  set working(busy) {
    if (busy && !this.busy) this.#since = performance.now();
    this.busy = busy;
    this.button.textContent = busy ? "Cancel" : "Send";
    this.button.classList.toggle("cancel", busy);
    $("hint").textContent = busy ? "Esc stops the reply" : "Enter sends, Shift+Enter is a new line";
    this.#ready();
  }

  #ready() {
    const empty = !this.busy && !this.input.value.trim() && !this.files.length;
    this.button.disabled = this.#draft === null;
    this.button.setAttribute("aria-disabled", String(empty));
  }

  get empty() {
    return !this.input.value && !this.files.length;
  }

  set(text, files) {
    this.input.value = text;
    this.files = files;
    this.#list();
    this.#changed();
  }

  /** The draft of another conversation. What is typed before it was found stays. */
  async open(id) {
    if (this.#draft !== null && this.#draft !== id) {
      this.input.value = "";
      this.files = [];
    }
    this.#draft = id;
    const found = store.left(store.DRAFT + id) ?? (await store.loadDraft(id).catch(() => null));
    if (this.#draft !== id) return;
    if (!this.input.value && !this.files.length) {
      this.input.value = found?.text ?? "";
      this.files = found?.files ?? [];
    }
    this.#list();
    this.#changed();
  }

  #changed() {
    this.#fit();
    this.#ready();
    this.#save();
  }

  async #save() {
    const id = this.#draft;
    if (id === null) return; // `open` saves what was typed before it
    this.#saving += 1;
    await store.saveDraft(id, this.input.value, this.files).then(() => store.forget(store.DRAFT + id), () => {});
    this.#saving -= 1;
  }

  /** The page goes away: what the database has not yet kept is kept beside it. */
  leave() {
    if (this.#saving) store.leave(store.DRAFT + this.#draft, { text: this.input.value, files: this.files });
  }

  /** Where the browser does not do it by itself, many times faster. */
  #fit() {
    if (CSS.supports("field-sizing", "content")) return;
    this.input.style.height = "auto";
    this.input.style.height = `${this.input.scrollHeight}px`;
  }

  // ------------------------------------------------------------------------------------ files

  async attach(list) {
    for (const file of [...list]) {
      const text = file.size <= MOST_BYTES ? await textOf(file) : null;
      if (text === null) {
        const why = file.size > MOST_BYTES ? "larger than 4 MB" : "not a text file";
        toast(`${visible(file.name)} is ${why}.`);
      } else {
        this.files = [...this.files, { name: file.name, text }];
      }
    }
    this.#list();
    this.#changed();
    this.input.focus();
  }

  #list() {
    const rows = this.files.map((file) => {
      const name = visible(file.name);
      const drop = () => {
        this.files = this.files.filter((one) => one !== file);
        this.#list();
        this.#changed();
        this.input.focus();
      };
      const button = h("button", { type: "button", class: "icon", "aria-label": `Remove ${name}`, onclick: drop });
      button.append(icon("close"));
      return h("li", {}, h("span", { text: name }), button);
    });
    $("files").replaceChildren(...rows);
    $("files").hidden = rows.length === 0;
  }
}

/** A file's text, or null if it is something else. */
async function textOf(file) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}
