import asyncio
import sys

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from watching import SCRIPT, URL, idle_within, report

options = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}
model = ChatOpenAI(model="scripted", **options)
whole = model.invoke(SCRIPT)
pieces = [chunk.content for chunk in model.stream(SCRIPT)]


async def stop_early():
    stream = model.astream("forever")
    async for _ in stream:
        break
    await stream.aclose()
    return await asyncio.to_thread(idle_within)


left = asyncio.run(stop_early())
try:
    ChatOpenAI(model="gpt-x", **options).invoke("hi")
except openai.NotFoundError as error:
    missing = error.code
try:
    model.invoke("w " * 6000)
except ContextOverflowError as error:
    too_long = error.code
# By default it sends the ids of OpenAI's own tokenizer.
vectors = OpenAIEmbeddings(
    model="minilm", check_embedding_ctx_length=False, **{**options, "base_url": f"{sys.argv[2]}/v1"}
)
report(
    documents=[len(vector) for vector in vectors.embed_documents(["a", "b"])],
    query=len(vectors.embed_query("a")),
    chat=whole.content,
    tokens=whole.usage_metadata["total_tokens"],
    stream="".join(pieces),
    left=left,
    missing=missing,
    too_long=too_long,
)
