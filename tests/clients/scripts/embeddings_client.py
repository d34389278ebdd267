import ollama
import openai
from watching import URL, report

TEXTS = ["A man is eating food.", "Someone has a meal."]
v1 = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}
client = openai.OpenAI(**v1)


def vectors(answer):
    return [row.embedding for row in answer.data]


errors = {}
for name, wrong in (
    ("missing", {"model": "nope"}),
    ("bad", {"dimensions": 7}),
    ("long", {"input": "a " * 400}),
):
    try:
        client.embeddings.create(**{"model": "minilm", "input": "x", **wrong})
    except openai.APIStatusError as error:
        errors[name] = [type(error).__name__, error.status_code, error.code, error.param]
host = ollama.Client(host=URL)
report(
    openai=vectors(client.embeddings.create(model="minilm", input=TEXTS)),  # base64 underneath
    openai_float=vectors(client.embeddings.create(model="minilm", input=TEXTS, encoding_format="float")),
    usage=client.embeddings.create(model="minilm", input="x").usage.total_tokens,
    ollama=[list(one) for one in host.embed(model="minilm", input=TEXTS).embeddings],
    ollama_old=list(host.embeddings(model="minilm", prompt=TEXTS[0]).embedding),
    errors=errors,
)
