// What a chat is asked with: system prompt, temperature, token limit, thinking. Empty = the server's choice.

import { openDialog } from "./dialogs.js";
import { h } from "./dom.js";

const field = (label, control, help = "") => {
  const described = help ? h("span", { class: "help", text: help }) : null;
  return h("label", {}, h("span", { text: label }), control, described);
};

/** Edits `settings` in place; `changed()` after each change. */
export function openSettings(settings, changed) {
  const system = h("textarea", { rows: "4", dir: "auto", placeholder: "You are …" });
  system.value = settings.system ?? "";
  const temperature = numeric(settings.temperature, { min: "0", max: "2", step: "0.1" });
  const most = numeric(settings.max_tokens, { min: "1", step: "1" });
  const thinking = h(
    "select",
    {},
    ...[["", "As the model likes"], ["on", "On"], ["off", "Off"]].map(([value, text]) => h("option", { value, text })),
  );
  thinking.value = settings.thinking ?? "";
  const form = h(
    "form",
    {},
    field("System prompt", system, "Said to the model before the conversation."),
    h(
      "div",
      { class: "pair" },
      field("Temperature", temperature, "0 is steady."),
      field("Token limit", most, "Of each reply."),
    ),
    field("Thinking", thinking, "Only models that can think do."),
  );
  form.addEventListener("input", () => {
    settings.system = system.value;
    settings.temperature = valueOf(temperature);
    settings.max_tokens = valueOf(most);
    settings.thinking = thinking.value;
    changed();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  openDialog("Settings of this chat", [form]);
}

function numeric(value, limits) {
  const input = h("input", { type: "number", inputmode: "decimal", placeholder: "default", ...limits });
  input.value = value ?? "";
  return input;
}

function valueOf(input) {
  return input.value === "" || !input.validity.valid ? null : Number(input.value);
}
