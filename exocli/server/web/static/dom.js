// Small helpers for elements. Knows nothing of chats.

export const $ = (id) => document.getElementById(id);

/** An element. Props that begin with "on" are listeners, "text" is its text, the others are attributes
 *  (null and false leave them out). Children are nodes or strings. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(space, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** Tell a screen reader, without moving the focus. The same words again are told again. */
export function announce(text) {
  const live = $("live");
  const told = visible(text);
  live.textContent = live.textContent === told ? `${told}\u00a0` : told;
}

let toastTimer = 0;

/** A short line at the bottom, with an action if one is given: {label, run}. */
export function toast(text, action = null) {
  const box = $("toast");
  clearTimeout(toastTimer);
  const close = () => {
    box.hidden = true;
  };
  box.replaceChildren(h("span", { text }));
  if (action) {
    const run = () => {
      close();
      action.run();
    };
    box.append(h("button", { type: "button", text: action.label, onclick: run }));
  }
  box.hidden = false;
  announce(text);
  toastTimer = setTimeout(close, action ? 10000 : 3000);
}

/** navigator.clipboard exists only over https and on this machine; the old way works everywhere. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const focused = document.activeElement;
    const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    focused?.focus();
  }
  toast("Copied");
}

/** crypto.randomUUID exists only over https and on this machine. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const number = (value) => Math.round(value).toLocaleString("en-US");

/** Characters that turn the direction of what follows, or hide, are named instead of obeyed. */
export function visible(text) {
  const name = (c) => `\u27e8U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u202a-\u202e\u2066-\u2069]/g, name);
}
