import asyncio
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks for a price list over the network
import litellm
from watching import SCRIPT, URL, idle_within, report

litellm.suppress_debug_info = True
litellm.telemetry = False
ask = {"messages": [{"role": "user", "content": SCRIPT}], "max_retries": 0}
WAYS = {
    "openai": {"model": "openai/scripted", "api_base": f"{URL}/v1", "api_key": "none"},
    "anthropic": {"model": "anthropic/scripted", "api_base": URL, "api_key": "none"},
    "ollama": {"model": "ollama_chat/scripted", "api_base": URL},
}


async def stop_early(way):
    stream = await litellm.acompletion(
        **way, messages=[{"role": "user", "content": "forever"}], stream=True, max_tokens=10**5
    )
    number = 0
    async for _ in stream:
        number += 1
        if number == 6:
            break
    await stream.aclose()
    return await asyncio.to_thread(idle_within)


found = {}
for name, way in WAYS.items():
    whole = litellm.completion(**way, **ask).choices[0].message.content
    pieces = [c.choices[0].delta.content or "" for c in litellm.completion(**way, **ask, stream=True)]
    found[name] = {"chat": whole, "stream": "".join(pieces)}
found["openai"]["left"] = asyncio.run(stop_early(WAYS["openai"]))
try:
    litellm.completion(**{**WAYS["openai"], "model": "openai/gpt-x"}, **ask)
except litellm.exceptions.NotFoundError as error:
    found["missing"] = type(error).__name__
try:
    litellm.completion(**WAYS["openai"], messages=[{"role": "user", "content": "w " * 6000}], max_retries=0)
except litellm.exceptions.ContextWindowExceededError as error:
    found["too long"] = type(error).__name__
embedder = {"api_base": f"{sys.argv[2]}/v1", "api_key": "none"}
rows = litellm.embedding(model="openai/minilm", input=["a", "b"], **embedder).data
found["embeddings"] = [len(row["embedding"]) for row in rows]
report(**found)
