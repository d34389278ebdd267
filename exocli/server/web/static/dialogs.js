// Questions to the person at the page, on the browser's own <dialog>: it traps the focus, closes on Esc
// and gives the focus back.

import { h, icon } from "./dom.js";

/** Opens a dialog that is gone once closed. `body` are nodes; `onclose` hears of the end. */
export function openDialog(title, body, { wide = false, onclose = () => {} } = {}) {
  const close = h("button", { type: "button", class: "icon", "aria-label": "Close" });
  close.append(icon("close"));
  const dialog = h(
    "dialog",
    { "aria-label": title, class: wide ? "wide" : null },
    h("header", { class: "bar" }, h("h2", { text: title }), close),
    ...body,
  );
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside it
  });
  dialog.addEventListener("close", () => {
    dialog.remove();
    onclose();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Asks for a line of text, or without `label` for a yes. → the text ("" for a yes), or null. */
export function ask({ title, text = "", label = "", value = "", secret = false, ok = "OK" }) {
  return new Promise((resolve) => {
    let answer = null;
    const type = secret ? "password" : "text";
    const input = label ? h("input", { type, autocomplete: "off", spellcheck: "false", maxlength: "500" }) : null;
    if (input) input.value = value;
    const form = h(
      "form",
      {},
      text ? h("p", { text }) : null,
      input ? h("label", {}, h("span", { text: label }), input) : null,
      h("div", { class: "row end" }, h("button", { type: "submit", class: "primary", text: ok })),
    );
    const dialog = openDialog(title, [form], { onclose: () => resolve(answer) });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      answer = input ? input.value.trim() : "";
      dialog.close();
    });
    (input ?? form.querySelector("button")).focus();
    input?.select();
  });
}
