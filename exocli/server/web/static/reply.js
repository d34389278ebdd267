// One reply on its way: the chat route's stream, as events. Knows nothing of the page.

import { ApiError, call, Unreachable } from "./api.js";
import { events, Silent } from "./sse.js";

/** The stream ended before the reply did. */
export class Broken extends Error {
  constructor(silent = false) {
    super(silent ? "The server has gone silent, or the network to it." : "The connection to the server broke off.");
  }
}

/** Yields {type: "queued", position}, {type: "loading", done, total, rank}, {type: "progress", processed,
 *  total, cached, time_ms}, {type: "text" | "reasoning", text}, {type: "finish", reason, cancel} and
 *  {type: "usage", …}. Throws ApiError, Unreachable, Broken, AbortError. */
export async function* replyTo(body, id, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Request-Id": id },
    body: JSON.stringify({
      ...body,
      stream: true,
      return_progress: true,
      stream_options: { include_usage: true },
    }),
    signal,
  });
  try {
    for await (const event of events(response.body)) {
      if (event.comment !== undefined) {
        yield* ofComment(event.comment);
      } else if (event.data === "[DONE]") {
        return;
      } else {
        yield* ofChunk(JSON.parse(event.data));
      }
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
    if (error instanceof Silent) throw new Broken(true);
    throw error instanceof TypeError || error instanceof SyntaxError ? new Broken() : error;
  }
  throw new Broken();
}

function* ofComment(text) {
  const found = /^(queued|loading) (\{.*\})$/.exec(text);
  if (found) yield { type: found[1], ...JSON.parse(found[2]) };
}

function* ofChunk(chunk) {
  if (chunk.error) throw new ApiError(200, chunk.error.message, chunk.error.code);
  if (chunk.prompt_progress) {
    const { cache, ...progress } = chunk.prompt_progress;
    yield { type: "progress", ...progress, cached: cache };
  }
  const choice = chunk.choices?.[0];
  if (choice?.delta.reasoning_content) yield { type: "reasoning", text: choice.delta.reasoning_content };
  if (choice?.delta.content) yield { type: "text", text: choice.delta.content };
  if (choice?.finish_reason) {
    yield { type: "finish", reason: choice.finish_reason, cancel: chunk.exo?.cancel ?? null };
  }
  if (chunk.usage) yield { type: "usage", ...chunk.usage };
}

/** What a person is told about an error, in one sentence. */
export function sentence(error) {
  if (error instanceof ApiError || error instanceof Broken || error instanceof Unreachable) return error.message;
  return `The page failed: ${error.message}`;
}
