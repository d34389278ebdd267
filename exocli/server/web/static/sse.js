// Server-sent events (WHATWG HTML, section 9.2) out of bytes, comments included: the server tells there
// what OpenAI's chunks have no field for. Knows no API.

const LOOK_MS = 5000;
const LOOKS = 9;

/** Nothing has come for so long that nothing will: the server sends a sign of life every ten seconds. */
export class Silent extends Error {}

/** The next piece. Throws Silent. Looks are counted, not time: a machine that slept has not waited. */
async function next(reader) {
  let looking;
  const silence = new Promise((_, reject) => {
    let left = LOOKS;
    looking = setInterval(() => (left -= 1) || reject(new Silent()), LOOK_MS);
  });
  try {
    return await Promise.race([reader.read(), silence]);
  } finally {
    clearInterval(looking);
  }
}

/** Yields {data: string} and {comment: string} as they arrive. Throws Silent, and what reading throws. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await next(reader);
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield { data: data.join("\n") };
          data = [];
        } else if (line.startsWith(":")) {
          yield { comment: line.slice(1).trim() };
        } else if (line.startsWith("data:")) {
          data.push(line.slice(5).replace(/^ /, ""));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
