import sys

import ollama
from watching import CALL, SCRIPT, URL, idle_within, report

client = ollama.Client(host=URL)
ask = {"model": "scripted", "messages": [{"role": "user", "content": SCRIPT}]}
whole = client.chat(**ask)
pieces = [part.message.content or "" for part in client.chat(**ask, stream=True)]
tools = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
]
call = client.chat(model="scripted", messages=[{"role": "user", "content": CALL}], tools=tools)
stream = client.chat(model="scripted", messages=[{"role": "user", "content": "forever"}], stream=True)
for number, _ in enumerate(stream):
    if number == 8:
        stream.close()
        break
left = idle_within()
errors = {}
for name, fn in (
    ("missing", lambda: client.chat(model="llama", messages=ask["messages"])),
    ("embed", lambda: client.embed(model="scripted", input="x")),
    (
        "mid-stream",
        lambda: list(client.generate(model="scripted", prompt='[["text", "a"], ["raise"]]', stream=True)),
    ),
):
    try:
        fn()
    except ollama.ResponseError as error:
        errors[name] = [error.status_code, error.error]
embedder = ollama.Client(host=sys.argv[2])
TEXTS = ["A man is eating food.", "Someone has a meal."]
report(
    embeddings=[list(one) for one in embedder.embed(model="minilm", input=TEXTS).embeddings],
    embedding=list(embedder.embeddings(model="minilm", prompt=TEXTS[0]).embedding),
    models=[model.model for model in client.list().models],
    chat=whole.message.content,
    thinking=whole.message.thinking,
    stream="".join(pieces),
    tool=call.message.tool_calls[0].function.arguments,
    left=left,
    errors=errors,
    generate=client.generate(model="scripted", prompt="a b").response,
    shown=client.show("scripted").capabilities,
    loaded=[model.model for model in client.ps().models],
)
