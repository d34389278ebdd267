// The messages of the chat that is shown, kept in step with it; follows the end while one reads there.

import { $, announce } from "./dom.js";
import { QuestionView, ReplyView } from "./message.js";

const NEAR = 80; // pixels from the end that still count as the end
const DRAW_MS = 50; // twenty times a second is fluent for text
const PHASES = {
  queued: "Waiting in the queue.",
  loading: "The model is loading.",
  prefill: "The model is reading.",
  thinking: "The model is thinking.",
  decode: "The reply is being written.",
};

export class Transcript {
  #views = new Map();
  #chat = null;
  #told = "";
  #frame = 0;
  #cost = 0;
  #drawn = 0;

  constructor(actions) {
    this.actions = actions;
    this.list = $("messages");
    this.scroller = $("scroller");
    this.following = true;
    this.scroller.addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = this.scroller;
      this.following = scrollHeight - scrollTop - clientHeight < NEAR;
      $("latest").hidden = this.following;
    });
    $("latest").addEventListener("click", () => this.toEnd());
  }

  show(chat) {
    this.#chat = chat;
    this.#views.clear();
    this.list.replaceChildren();
    this.#told = chat.live?.phase ?? "";
    this.draw();
    this.toEnd();
  }

  toEnd() {
    this.following = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    $("latest").hidden = true;
  }

  /** Draw soon, and rarer the longer a drawing takes. */
  later() {
    if (this.#frame) return;
    const wait = Math.max(0, this.#drawn + Math.max(DRAW_MS, 6 * this.#cost) - performance.now());
    this.#frame = setTimeout(() => requestAnimationFrame(() => this.draw()), wait);
  }

  /** Draw all again: the Markdown libraries have come. */
  rewrite() {
    for (const view of this.#views.values()) view.rewrite?.();
    if (this.#chat) this.draw();
  }

  draw() {
    clearTimeout(this.#frame);
    this.#frame = 0;
    const begun = performance.now();
    const { live, record } = this.#chat;
    const turns = record.messages;
    $("empty").hidden = turns.length > 0;
    const seen = new Set(turns.map((turn) => turn.id));
    for (const [id, view] of this.#views) {
      if (seen.has(id)) continue;
      view.element.remove();
      this.#views.delete(id);
    }
    turns.forEach((turn, index) => {
      const last = index === turns.length - 1;
      const view = this.#view(turn);
      view.update(turn, last ? live : null, last);
      if (this.list.children[index] !== view.element) {
        this.list.insertBefore(view.element, this.list.children[index] ?? null);
      }
    });
    if (this.following) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#drawn = performance.now();
    this.#cost = this.#drawn - begun;
  }

  #view(turn) {
    if (!this.#views.has(turn.id)) {
      const Kind = turn.role === "user" ? QuestionView : ReplyView;
      this.#views.set(turn.id, new Kind(turn, this.actions));
    }
    return this.#views.get(turn.id);
  }

  /** Tell a screen reader each change of phase once, and the whole reply when it is there. */
  tell({ live, last }) {
    const now = live ? live.phase : "";
    if (now === this.#told) return;
    const before = this.#told;
    this.#told = now;
    if (PHASES[now]) announce(PHASES[now]);
    else if (!now && before && last?.role === "assistant") {
      announce(last.note ? `${last.note} ${last.text}` : `Reply: ${last.text}`);
    }
  }
}
