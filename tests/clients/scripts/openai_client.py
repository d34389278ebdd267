import sys

import openai
from watching import CALL, SCRIPT, URL, idle_within, report

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
ask = {"model": "scripted", "messages": [{"role": "user", "content": SCRIPT}]}
message = client.chat.completions.create(**ask).choices[0].message
pieces, usage = [], None
for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
    usage = chunk.usage or usage
    pieces += [choice.delta.content or "" for choice in chunk.choices]
tools = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
]
call = client.chat.completions.create(
    model="scripted", messages=[{"role": "user", "content": CALL}], tools=tools
).choices[0]

left = []
for path in ("chat", "responses"):
    if path == "chat":
        stream = client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "forever"}], stream=True
        )
    else:
        stream = client.responses.create(model="scripted", input="forever", stream=True)
    for number, _ in enumerate(stream):
        if number == 8:
            stream.close()
            break
    left.append(idle_within())

errors = {}
for name, wrong in (("missing", {"model": "gpt-4"}), ("bad", {"n": 2})):
    try:
        client.chat.completions.create(**{**ask, **wrong})
    except openai.APIStatusError as error:
        errors[name] = [type(error).__name__, error.status_code, error.code, error.param]
broken = [{"role": "user", "content": '[["text", "half "], ["raise"]]'}]
try:
    for _ in client.chat.completions.create(model="scripted", messages=broken, stream=True):
        pass
except openai.APIError as error:
    errors["mid-stream"] = [type(error).__name__, str(error)]

response = client.responses.create(model="scripted", input=SCRIPT)
streamed = "".join(
    event.delta
    for event in client.responses.create(model="scripted", input=SCRIPT, stream=True)
    if event.type == "response.output_text.delta"
)
embedder = openai.OpenAI(base_url=f"{sys.argv[2]}/v1", api_key="none", max_retries=0)
TEXTS = ["A man is eating food.", "Someone has a meal."]


def vectors(**more):
    return [row.embedding for row in embedder.embeddings.create(model="minilm", input=TEXTS, **more).data]


refused = {}
for name, wrong in (
    ("missing", {"model": "nope"}),
    ("bad", {"dimensions": 7}),
    ("long", {"input": "a " * 400}),
):
    try:
        embedder.embeddings.create(**{"model": "minilm", "input": "x", **wrong})
    except openai.APIStatusError as error:
        refused[name] = [type(error).__name__, error.status_code, error.code, error.param]
report(
    embeddings={
        "base64": vectors(),  # what it asks for by default
        "float": vectors(encoding_format="float"),
        "usage": embedder.embeddings.create(model="minilm", input="x").usage.total_tokens,
        "refused": refused,
    },
    models=[model.id for model in client.models.list()],
    chat=message.content,
    reasoning=message.model_extra["reasoning_content"],
    stream="".join(pieces),
    usage=usage.total_tokens,
    tool=[call.finish_reason, call.message.tool_calls[0].function.arguments],
    left=left,
    errors=errors,
    response=response.output_text,
    response_status=response.status,
    response_stream=streamed,
    completion=client.completions.create(model="scripted", prompt="a b").choices[0].text,
)
