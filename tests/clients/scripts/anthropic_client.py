import anthropic
from watching import CALL, SCRIPT, URL, idle_within, report

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
ask = {"model": "scripted", "max_tokens": 50, "messages": [{"role": "user", "content": SCRIPT}]}
message = client.messages.create(**ask)
with client.messages.stream(**ask) as stream:
    pieces = list(stream.text_stream)
    final = stream.get_final_message()
tools = [{"name": "look", "input_schema": {"type": "object", "properties": {}}}]
call = client.messages.create(
    model="scripted", max_tokens=50, messages=[{"role": "user", "content": CALL}], tools=tools
)
forever = {"model": "scripted", "max_tokens": 10**6, "messages": [{"role": "user", "content": "forever"}]}
with client.messages.stream(**forever) as stream:
    for number, _ in enumerate(stream.text_stream):
        if number == 5:
            break
left = idle_within()
errors = {}
for name, wrong in (("missing", {"model": "claude"}), ("bad", {"messages": []})):
    try:
        client.messages.create(**{**ask, **wrong})
    except anthropic.APIStatusError as error:
        errors[name] = [type(error).__name__, error.status_code]
        assert error.request_id == error.body["request_id"]
try:
    client.models.retrieve("claude")
except anthropic.NotFoundError as error:
    errors["no model"] = error.type
try:
    broken = [{"role": "user", "content": '[["text", "half "], ["raise"]]'}]
    with client.messages.stream(model="scripted", max_tokens=50, messages=broken) as stream:
        stream.until_done()
except anthropic.APIError as error:
    errors["mid-stream"] = [type(error).__name__, str(error)]
report(
    models=[model.id for model in client.models.list()],
    chat=[block.type for block in message.content],
    text=message.content[-1].text,
    stream="".join(pieces),
    input_tokens=final.usage.input_tokens,
    stop=final.stop_reason,
    tool=[call.stop_reason, call.content[-1].input],
    left=left,
    errors=errors,
    count=client.messages.count_tokens(model="scripted", messages=ask["messages"]).input_tokens,
)
