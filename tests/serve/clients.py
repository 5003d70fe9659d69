"""The official clients against a running server: openai, anthropic, ollama, and Prometheus' parser."""
import json
import sys
import typing

import anthropic
import ollama
import openai
import pydantic
from prometheus_client.parser import text_string_to_metric_families
import urllib.request

url = sys.argv[1]
user = [{"role": "user", "content": "What is the sea?"}]
parameters = {"type": "object", "properties": {"at": {"enum": ["sea", "sky"]}}, "required": ["at"], "additionalProperties": False}
tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": parameters}}


def openai_chats_and_completes():
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == model
    whole = client.chat.completions.create(model=model, messages=user, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2)
    assert whole.choices[0].message.content is not None and whole.usage.total_tokens > 0
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
    text, usage = "", None
    for chunk in client.chat.completions.create(model=model, messages=user, max_tokens=12, temperature=0, stream=True,
                                                stream_options={"include_usage": True}):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content and usage.completion_tokens == whole.usage.completion_tokens
    done = client.completions.create(model=model, prompt="The sea", max_tokens=5, temperature=0)
    assert done.choices[0].text and done.choices[0].finish_reason in ("length", "stop")
    called = client.chat.completions.create(model=model, messages=user, tools=[tool], tool_choice="required", max_tokens=600)
    use = called.choices[0].message.tool_calls[0]
    assert use.function.name == "look" and json.loads(use.function.arguments)["at"] in ("sea", "sky")
    talk = user + [called.choices[0].message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": use.id, "content": "It is wet."}]
    assert client.chat.completions.create(model=model, messages=talk, tools=[tool], max_tokens=8).choices
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": parameters}}
    answer = client.chat.completions.create(model=model, messages=user, response_format=form, max_tokens=600)
    assert json.loads(answer.choices[0].message.content)["at"] in ("sea", "sky")
    vectors = client.embeddings.create(model=model, input=["The sea", "The sky"]).data  # asks for base64
    assert len(vectors) == 2 and len(vectors[1].embedding) == 128 and abs(sum(v * v for v in vectors[0].embedding) - 1) < 1e-4
    try:
        client.chat.completions.create(model=model, messages=user, temperature=-1)
        raise AssertionError("a temperature of -1 was taken")
    except openai.BadRequestError as e:
        assert e.param == "temperature", e


def openai_responds():
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    first = client.responses.create(model="x", input="What is the sea?", instructions="Be brief.", max_output_tokens=12, temperature=0)
    assert first.output_text and first.usage.total_tokens > 0
    kinds, text = [], ""
    with client.responses.stream(model="x", input="What is the sea?", instructions="Be brief.", max_output_tokens=12, temperature=0) as stream:
        for e in stream:
            kinds.append(e.type)
            text += e.delta if e.type == "response.output_text.delta" else ""
    assert text == first.output_text and kinds[0] == "response.created", kinds
    second = client.responses.create(model="x", input="And?", previous_response_id=first.id, max_output_tokens=8)
    assert client.responses.retrieve(second.id).output_text == second.output_text
    assert [i.content[0].text for i in client.responses.input_items.list(second.id)] == ["And?"]
    client.responses.delete(second.id)
    look = {"type": "function", "name": "look", "parameters": parameters, "strict": True}
    called = client.responses.create(model="x", input="Look!", tools=[look], tool_choice="required", max_output_tokens=600)
    use = called.output[-1]
    assert use.type == "function_call" and json.loads(use.arguments)["at"] in ("sea", "sky")
    result = {"type": "function_call_output", "call_id": use.call_id, "output": "It is wet."}
    assert client.responses.create(model="x", input=[result], previous_response_id=called.id, max_output_tokens=8).output

    class Place(pydantic.BaseModel):
        at: typing.Literal["sea", "sky"]
    assert client.responses.parse(model="x", input="Where?", text_format=Place, max_output_tokens=600).output_parsed.at in ("sea", "sky")
    try:
        client.responses.retrieve("resp_none")
        raise AssertionError("a response that is not there")
    except openai.NotFoundError:
        pass


def anthropic_messages():
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    whole = client.messages.create(model="x", max_tokens=12, messages=user, system="Be brief.", extra_body={"temperature": 0})
    with client.messages.stream(model="x", max_tokens=12, messages=user, system="Be brief.", extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == whole.content[0].text and last.stop_reason == whole.stop_reason
    assert client.messages.count_tokens(model="x", messages=user, system="Be brief.").input_tokens == whole.usage.input_tokens
    tools = [{"name": "look", "input_schema": parameters}]
    used = client.messages.create(model="x", max_tokens=600, messages=user, tools=tools, tool_choice={"type": "any"})
    block = used.content[-1]
    assert used.stop_reason == "tool_use" and block.input["at"] in ("sea", "sky")
    talk = user + [{"role": "assistant", "content": [b.model_dump() for b in used.content]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "Wet."}]}]
    assert client.messages.create(model="x", max_tokens=8, messages=talk, tools=tools).content is not None
    with client.messages.stream(model="x", max_tokens=600, messages=user, tools=tools, tool_choice={"type": "any"}) as stream:
        assert stream.get_final_message().content[-1].input["at"] in ("sea", "sky")


def ollama_chats():
    client = ollama.Client(host=url)
    name = client.list().models[0].model
    options = {"temperature": 0, "num_predict": 12}
    whole = client.chat(model=name, messages=user, options=options)
    assert "".join(p.message.content for p in client.chat(model=name, messages=user, options=options, stream=True)) == whole.message.content
    assert client.generate(model=name, prompt="Hm", options=options).response is not None
    assert json.loads(client.chat(model=name, messages=user, format=parameters).message.content)["at"] in ("sea", "sky")
    assert client.show(name).modelinfo and client.ps().models
    assert len(client.embed(model=name, input=["The sea", "The sky"]).embeddings[1]) == 128
    assert len(client.embeddings(model=name, prompt="The sea").embedding) == 128


def prometheus_reads_the_metrics():
    text = urllib.request.urlopen(url + "/metrics").read().decode()
    names = {f.name for f in text_string_to_metric_families(text)}
    assert {"kermes_tokens", "kermes_first_token_seconds", "kermes_requests_running"} <= names, names


for check in (openai_chats_and_completes, openai_responds, anthropic_messages, ollama_chats, prometheus_reads_the_metrics):
    check()
    print(check.__name__.replace("_", " "))
