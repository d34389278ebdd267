// From a kept conversation to what the model is sent. Pure; the one rule for what counts as said.

/** A question counts once there is some answer to it: what failed or was stopped before its first word
 *  would otherwise stand in the way of every later message. */
export function messagesOf(record) {
  const { system } = record.settings;
  const sent = system?.trim() ? [{ role: "system", content: system }] : [];
  const turns = record.messages;
  turns.forEach((turn, index) => {
    if (turn.role === "user") {
      const reply = turns[index + 1];
      const awaited = index === turns.length - 1 || (index === turns.length - 2 && reply.state === "live");
      if (awaited || reply?.text) sent.push({ role: "user", content: withFiles(turn) });
    } else if (turn.text) {
      sent.push({ role: "assistant", content: turn.text });
    }
  });
  return sent;
}

/** The files come first: the next question about them then finds them in the cache. */
export function withFiles({ text, files = [] }) {
  return [...files.map(fenced), text].filter(Boolean).join("\n\n");
}

function fenced({ name, text }) {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), (found) => found[0].length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text}\n${fence}`;
}

/** The chat route's body. Fields left empty are the server's to choose. */
export function bodyOf(record, { proceed = false } = {}) {
  const { model, temperature, max_tokens: most, thinking } = record.settings;
  return {
    ...(model ? { model } : {}),
    messages: messagesOf(record),
    ...(temperature === null || temperature === undefined ? {} : { temperature }),
    ...(most ? { max_tokens: most } : {}),
    ...(thinking === "off" ? { reasoning_effort: "none" } : {}),
    ...(thinking === "on" ? { reasoning_effort: "medium" } : {}),
    ...(proceed ? { continue_final_message: true } : {}),
  };
}

/** The first words of the first message. */
export function titleOf(record) {
  const first = record.messages.find((turn) => turn.role === "user");
  const text = (first?.text || first?.files?.[0]?.name || "").replace(/[#*`\s]+/g, " ").trim();
  return text.length > 60 ? `${text.slice(0, 59).trimEnd()}…` : text || "New chat";
}
