// One message on the page: who, what, how far, and what can be done with it. Reads a chat's data, and
// acts through the `actions` that it is given.

import { copy, h, number, visible } from "./dom.js";
import * as markdown from "./markdown.js";
import { dotted, prefillLine, speed } from "./progress.js";
import { withFiles } from "./prompt.js";

const LONG = 1500;

const button = (text, onclick, props = {}) => h("button", { type: "button", text, onclick, ...props });

export class QuestionView {
  constructor(turn, actions) {
    this.actions = actions;
    this.body = h("div", { class: "body", dir: "auto" });
    this.buttons = h("div", { class: "actions" });
    this.element = h("article", { class: "message user" }, h("h2", { class: "unseen", text: "You" }), this.body, this.buttons);
    this.turn = null;
    this.update(turn);
  }

  update(turn) {
    if (this.turn === turn) return;
    this.turn = turn;
    const files = (turn.files ?? []).map((file) =>
      h("details", { class: "file" }, h("summary", { text: visible(file.name) }), h("pre", { tabindex: "0", text: visible(file.text) })),
    );
    this.body.replaceChildren(...files, ...(turn.text ? [said(turn.text)] : []));
    this.buttons.replaceChildren(
      button("Copy", () => copy(withFiles(this.turn))),
      button("Edit", () => this.edit()),
    );
  }

  edit() {
    const area = h("textarea", { "aria-label": "Edit this message", dir: "auto" });
    area.value = this.turn.text;
    const close = () => {
      const { turn } = this;
      this.turn = null;
      this.update(turn);
      this.buttons.lastElementChild.focus();
    };
    const resend = () => {
      if (area.value.trim()) this.actions.edit(this.turn.id, area.value.trim());
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        resend();
      }
    });
    this.body.replaceChildren(area);
    this.buttons.replaceChildren(button("Send again", resend), button("Leave it", close));
    area.focus();
  }
}

function said(text) {
  const shown = visible(text);
  if (shown.length <= LONG) return h("p", { class: "plain", text: shown });
  const first = shown.slice(0, 240).trimEnd();
  return h(
    "details",
    { class: "long" },
    h("summary", {}, h("span", { class: "plain", text: `${first}… ` }), h("span", { class: "muted", text: `${number(shown.length)} characters` })),
    h("p", { class: "plain", text: shown }),
  );
}

export class ReplyView {
  constructor(turn, actions) {
    this.actions = actions;
    this.who = h("h2", { class: "who" });
    this.thoughts = h("div", { class: "thoughts", dir: "auto" });
    this.summary = h("summary", { text: "Thinking" });
    this.reasoning = h("details", { class: "reasoning" }, this.summary, this.thoughts);
    this.body = h("div", { class: "body", dir: "auto" });
    this.label = h("p", { class: "label" });
    this.bar = h("progress", { "aria-label": "Reading the message" });
    this.line = h("p", { class: "numbers" });
    this.waiting = h("div", { class: "waiting" }, this.label, this.bar, this.line);
    this.note = h("p", { class: "note" });
    this.buttons = h("div", { class: "actions" });
    this.element = h(
      "article",
      { class: "message assistant" },
      this.who,
      this.reasoning,
      this.body,
      this.note,
      this.buttons,
    );
    this.text = this.thought = this.offered = null;
  }

  /** `live`: the chat's, if this reply is the one on its way; `last`: nothing follows it. */
  update(turn, live, last) {
    this.turn = turn;
    this.element.dataset.state = turn.state;
    this.who.textContent = turn.model || "Reply";
    this.#write(turn, live);
    if (live && !["decode", "thinking"].includes(live.phase)) {
      this.#wait(live);
      if (!this.waiting.isConnected) this.body.after(this.waiting);
    } else {
      this.waiting.remove();
    }
    this.note.textContent = turn.note ?? "";
    this.note.hidden = !turn.note;
    this.#offer(turn, Boolean(live), last);
  }

  rewrite() {
    this.text = this.thought = null;
  }

  #write(turn, live) {
    if (turn.text !== this.text) {
      markdown.show(this.body, turn.text);
      this.text = turn.text;
    }
    this.reasoning.hidden = !turn.reasoning;
    if (turn.reasoning && turn.reasoning !== this.thought) {
      markdown.show(this.thoughts, turn.reasoning);
      this.thought = turn.reasoning;
    }
    this.summary.textContent = live?.phase === "thinking" ? "Thinking…" : "Thoughts";
  }

  #wait({ phase, status, progress, prefill }) {
    let value = null;
    let line = "";
    let label = { sending: "Sending…", elsewhere: "On its way in another tab" }[phase] ?? "Waiting…";
    if (phase === "queued") {
      const before = status.position;
      label = "Waiting for its turn";
      line = before > 1 ? `${number(before)}th in the queue`.replace(/\b([23])th/, (_, n) => n + { 2: "nd", 3: "rd" }[n]) : "Next in the queue";
    } else if (phase === "loading") {
      label = "Loading the model";
      const { done, total, rank } = status;
      if (total) {
        value = done / total;
        line = `${Math.round(100 * value)} %${rank === undefined ? "" : ` on rank ${rank}`}`;
      }
    } else if (phase === "prefill") {
      label = "Reading";
      value = progress.processed / progress.total;
      line = prefillLine(progress, prefill.perSecond);
    }
    this.label.textContent = label;
    this.line.textContent = line;
    this.bar.hidden = phase === "elsewhere";
    this.bar.setAttribute("aria-label", label);
    if (value === null) this.bar.removeAttribute("value");
    else this.bar.value = value;
  }

  #offer(turn, live, last) {
    const offered = live ? "" : `${turn.state} ${last} ${turn.stats?.written}`;
    if (offered === this.offered) return;
    this.offered = offered;
    const { again, proceed } = this.actions;
    const unfinished = ["cut", "stopped", "broken"].includes(turn.state);
    const buttons = [];
    if (!live) {
      if (turn.text) buttons.push(button("Copy", () => copy(this.turn.text)));
      if (last && unfinished && turn.text) buttons.push(button("Go on", proceed));
      if (last) buttons.push(button(turn.state === "done" ? "Regenerate" : "Retry", again));
      if (turn.stats) buttons.push(h("span", { class: "muted", text: statistics(turn.stats) }));
    }
    this.buttons.replaceChildren(...buttons);
  }
}

function statistics({ prompt, cached, written, perSecond }) {
  const parts = [`${number(written)} tokens`];
  if (perSecond) parts.push(`${speed(perSecond)} tokens/s`);
  parts.push(`${number(prompt)} read`);
  if (cached) parts.push(`${number(cached)} of them from the cache`);
  return dotted(parts);
}
