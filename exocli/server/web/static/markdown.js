// A reply's Markdown as elements: marked parses, DOMPurify sanitizes, neither is loaded before the first
// paint. HTML in a reply is shown as it was written, never obeyed; nothing in it loads anything.

import { copy, h, visible } from "./dom.js";

const TAGS =
  "a blockquote br code del em h3 h4 h5 h6 hr li ol p pre strong sub sup table tbody td th thead tr ul".split(" ");
const RULES = {
  ALLOWED_TAGS: TAGS,
  ALLOWED_ATTR: ["href", "title", "start", "align", "data-language"],
  ADD_URI_SAFE_ATTR: ["start", "align", "data-language"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

let engine = null;

const escape = (text) =>
  text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

const renderer = {
  html: ({ text }) => escape(text),
  heading({ tokens, depth }) {
    const level = Math.min(6, depth + 2); // the page's own headings are the first two
    return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
  },
  code: ({ text, lang }) =>
    `<pre><code data-language="${escape((lang ?? "").split(/\s/)[0])}">${escape(text)}</code></pre>`,
  image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
  checkbox: ({ checked }) => (checked ? "\u2611 " : "\u2610 "),
};

/** Loads the two libraries. Until then `show` shows plain text. */
export async function load() {
  const [{ Marked }] = await Promise.all([
    import("./vendor/marked/marked.esm.js"),
    import("./vendor/dompurify/purify.min.js"),
  ]);
  const purify = globalThis.DOMPurify;
  purify.addHook("afterSanitizeAttributes", (node) => {
    if (node.tagName !== "A") return;
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  });
  engine = { marked: new Marked({ gfm: true, breaks: true, renderer }), purify };
}

/** Makes `container` show `text`. Blocks that have not changed stay the same elements, so that a
 *  selection in them outlives what is still being written below. */
export function show(container, text) {
  const shown = visible(text);
  if (!engine) {
    container.replaceChildren(h("p", { class: "plain", text: shown }));
    return;
  }
  const blocks = engine.marked.lexer(shown).filter((token) => token.type !== "space");
  while (container.children.length > blocks.length) container.lastElementChild.remove();
  blocks.forEach((token, index) => {
    const old = container.children[index];
    if (old?.raw === token.raw) return;
    const block = h("div", { class: "block" }, elementsOf(token));
    block.raw = token.raw;
    if (old) old.replaceWith(block);
    else container.append(block);
  });
}

function elementsOf(token) {
  const fragment = engine.purify.sanitize(engine.marked.parser([token]), RULES);
  for (const pre of fragment.querySelectorAll("pre")) frameCode(pre);
  for (const table of fragment.querySelectorAll("table")) {
    const frame = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  return fragment;
}

function frameCode(pre) {
  const code = pre.querySelector("code");
  const language = code?.dataset.language || "";
  const button = h("button", { type: "button", text: "Copy", "aria-label": "Copy this code" });
  button.addEventListener("click", () => copy(pre.textContent.replace(/\n$/, "")));
  const frame = h("div", { class: "code" }, h("div", { class: "code-bar" }, h("span", { text: language }), button));
  pre.replaceWith(frame);
  pre.tabIndex = 0; // long lines scroll, by keyboard too
  pre.setAttribute("aria-label", "Code");
  pre.setAttribute("role", "region");
  frame.append(pre);
}
