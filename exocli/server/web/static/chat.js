// One conversation and the reply on its way in it: sending, stopping, going on. Knows no elements.
// Tells "change" whenever something is to be shown anew, and "taken-back" with a message to edit again.

import * as api from "./api.js";
import { newId } from "./dom.js";
import { Rate } from "./progress.js";
import { bodyOf, titleOf } from "./prompt.js";
import { replyTo, sentence } from "./reply.js";
import * as store from "./store.js";

const SAVE_MS = 1000;
const CANCEL_MS = 1500; // after which the connection is closed too: that cancels as well
const WATCH_MS = 700;

export function newRecord(settings) {
  return { id: newId(), title: "New chat", named: false, updated: Date.now(), settings, messages: [] };
}

export class Chat extends EventTarget {
  #saved = 0;

  /** `record` = {id, title, named, updated, settings, messages}; a message of role "user" is {id, role,
   *  text, files}, a reply {id, role, text, reasoning, state, note, model, request, stats}, its state
   *  "live", "done", "cut" (token limit), "stopped", "broken" (has text) or "failed" (has none). */
  constructor(record) {
    super();
    this.record = record;
    /** What is known of the reply on its way, null between replies. `elsewhere`: another tab reads it. */
    this.live = null;
  }

  get last() {
    return this.record.messages.at(-1);
  }

  #tell(type = "change", detail = null) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  // ------------------------------------------------------------------------------ what can be asked

  send(text, files) {
    const question = { id: newId(), role: "user", text, files };
    this.record.messages.push(question);
    if (!this.record.named) this.record.title = titleOf(this.record);
    return this.#answer(this.#fresh(), {
      undo: () => {
        this.record.messages.splice(-2);
        this.#tell("taken-back", question);
      },
    });
  }

  /** Ask an earlier message anew, in other words; what came after it goes. Stopped before the first word,
   *  all of it is back. */
  edit(id, text) {
    const { title, messages } = this.record;
    const at = messages.findIndex((turn) => turn.id === id);
    const question = { ...messages[at], text };
    this.record.messages = [...messages.slice(0, at), question];
    if (at === 0 && !this.record.named) this.record.title = titleOf(this.record);
    return this.#answer(this.#fresh(), {
      undo: () => {
        Object.assign(this.record, { title, messages });
        this.#tell("taken-back", question);
      },
    });
  }

  /** Another reply to the last message. Stopped before its first word, the old one is back. */
  again() {
    const old = this.record.messages.pop();
    return this.#answer(this.#fresh(), { undo: () => this.record.messages.splice(-1, 1, old) });
  }

  /** Go on from the end of the last reply. */
  proceed() {
    const { state, note } = this.last;
    return this.#answer(this.last, { proceed: true, undo: () => Object.assign(this.last, { state, note }) });
  }

  #fresh() {
    const reply = { id: newId(), role: "assistant", text: "", reasoning: "", note: null };
    this.record.messages.push(reply);
    return reply;
  }

  // ------------------------------------------------------------------------------ the reply's way

  async #answer(reply, { proceed = false, undo = null }) {
    const live = {
      id: newId(),
      controller: new AbortController(),
      undo,
      phase: "sending",
      prefill: new Rate(),
      decode: new Rate(),
      tokens: 0,
      begun: false,
      started: performance.now(),
    };
    Object.assign(reply, { state: "live", note: null, request: live.id, model: this.record.settings.model });
    this.live = live;
    this.#tell();
    this.save();
    let end = "done";
    let note = null;
    try {
      for await (const event of replyTo(bodyOf(this.record, { proceed }), live.id, live.controller.signal)) {
        if (this.live !== live) return;
        if (event.type === "finish") [end, note] = ending(event);
        else this.#take(live, reply, event);
      }
    } catch (error) {
      if (this.live !== live) return;
      end = reply.text || reply.reasoning ? "broken" : "failed";
      note = sentence(error);
    }
    if (this.live === live) this.#end(reply, end, note);
  }

  #take(live, reply, event) {
    const now = performance.now();
    switch (event.type) {
      case "text":
      case "reasoning":
        live.phase = event.type === "text" ? "decode" : "thinking";
        live.begun = true;
        live.decode.add((live.tokens += 1), now);
        reply[event.type] += event.text;
        if (now - this.#saved > SAVE_MS) this.save();
        break;
      case "progress":
        live.phase = "prefill";
        live.progress = event;
        live.prefill.add(event.processed, now);
        break;
      case "usage":
        reply.stats = {
          prompt: event.prompt_tokens,
          cached: event.prompt_tokens_details?.cached_tokens ?? 0,
          written: event.completion_tokens,
          perSecond: live.decode.perSecond,
        };
        return;
      default:
        live.phase = event.type;
        live.status = event;
    }
    this.#tell();
  }

  #end(reply, state, note) {
    Object.assign(reply, { state, note });
    this.live = null;
    const saved = this.save();
    this.#tell();
    return saved;
  }

  /** Stops the reply. The page is free at once; the server's receipt is added when it comes. */
  async cancel() {
    const { live, last: reply } = this;
    if (!live) return;
    if (!live.elsewhere) {
      if (!live.begun && live.undo) {
        live.undo();
        this.live = null;
        this.save();
        this.#tell();
      } else {
        this.#end(reply, "stopped", reply.text || reply.reasoning ? "Stopped." : "Stopped before the first word.");
      }
    }
    const timer = setTimeout(() => live.controller?.abort(), CANCEL_MS);
    try {
      const receipt = await api.cancel(live.id);
      this.#tell("receipt", receipt);
    } catch {
      // Unknown there (it had not arrived, or is over) or nobody answers: closing does the rest.
    } finally {
      clearTimeout(timer);
      live.controller?.abort();
    }
  }

  // ------------------------------------------------------------------------------ keeping

  /** Never fails: a browser that keeps nothing still chats. */
  async save() {
    this.#saved = performance.now();
    this.record.updated = Date.now();
    try {
      await store.save(this.record);
    } catch {
      this.#tell("unsaved");
    }
  }

  /** The page goes away: a reply on its way is kept as far as it got. */
  leave() {
    if (!this.live || this.live.elsewhere) return;
    const { id, text, reasoning } = this.last;
    store.leave(this.record.id, { id, text, reasoning });
    this.save();
    this.live = null; // the stream breaks now, and that is no news: the next page finds out what became of it
  }

  /** A reply that is "live" in what was kept is written by another tab, or its page is gone: the server
   *  knows which. Follows the one, marks the other. */
  async watch() {
    const reply = this.last;
    if (this.live || reply?.state !== "live") return;
    const live = { id: reply.request, elsewhere: true, phase: "elsewhere", begun: true };
    this.live = live;
    this.#tell();
    while ((await this.#runs(live.id)) && this.live === live) {
      await new Promise((resolve) => setTimeout(resolve, WATCH_MS));
    }
    if (this.live !== live) return;
    this.live = null;
    await this.reload();
    if (this.last?.state === "live") {
      const left = store.left(this.record.id);
      if (left?.id === this.last.id) Object.assign(this.last, left);
      const state = this.last.text || this.last.reasoning ? "broken" : "failed";
      await this.#end(this.last, state, "The page was closed or reloaded while this reply was on its way.");
      store.forget(this.record.id);
    }
  }

  async #runs(id) {
    try {
      return (await api.requests()).some((row) => row.id === id);
    } catch {
      return false;
    }
  }

  /** What another tab has written here. → whether the conversation is still there. */
  async reload() {
    const found = await store.load(this.record.id).catch(() => this.record);
    if (found && !(this.live && !this.live.elsewhere)) {
      this.record = found;
      if (this.live?.elsewhere && this.last?.state !== "live") this.live = null;
      this.#tell();
    }
    return Boolean(found);
  }
}

function ending({ reason, cancel }) {
  if (cancel) return ["stopped", "Stopped on the server."];
  if (reason === "length") return ["cut", "The reply reached its limit of tokens."];
  if (reason === "content_filter") return ["cut", "The server withheld the rest."];
  return ["done", null];
}
