import OpenAI from "openai";

const url = process.argv[2];
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const script = JSON.stringify([["reasoning", "hm"], ["text", "so "], ["text", "it is"]]);
const ask = { model: "scripted", messages: [{ role: "user", content: script }] };

async function idle() {
  const begin = Date.now();
  while ((await (await fetch(`${url}/v1/requests`)).json()).data.length > 0) {
    if (Date.now() - begin > 3000) return null;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  return (Date.now() - begin) / 1000;
}

const whole = await client.chat.completions.create(ask);
let stream = "";
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
  stream += chunk.choices[0]?.delta?.content ?? "";
}

const forever = { ...ask, messages: [{ role: "user", content: "forever" }] };
const reading = await client.chat.completions.create({ ...forever, stream: true });
let seen = 0;
for await (const chunk of reading) {
  if (++seen === 8) reading.controller.abort();
}
const left = [await idle()];

const controller = new AbortController();
const waiting = client.chat.completions.create(forever, { signal: controller.signal });
while ((await (await fetch(`${url}/v1/requests`)).json()).data.length === 0);
controller.abort();
const aborted = await waiting.then(() => null, (error) => error.constructor.name);
left.push(await idle());

const missing = await client.chat.completions
  .create({ ...ask, model: "gpt-x" })
  .then(() => null, (error) => [error.constructor.name, error.status, error.code]);
const models = [];
for await (const model of client.models.list()) models.push(model.id);
const response = await client.responses.create({ model: "scripted", input: script });
console.log(
  JSON.stringify({
    chat: whole.choices[0].message.content,
    stream,
    left,
    aborted,
    missing,
    models,
    response: response.output_text,
  }),
);
