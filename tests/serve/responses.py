"""OpenAI's /v1/responses: items, events, what is kept for the next turn, and what is refused."""
import json
import sys

from client import call, events

url = sys.argv[1]
schema = {"type": "object", "properties": {"at": {"enum": ["sea", "sky"]}}, "required": ["at"], "additionalProperties": False}
tool = {"type": "function", "name": "look", "description": "Looks.", "parameters": schema}


def respond(**more):
    return call(url, "/v1/responses", {"input": "What is the sea?", "max_output_tokens": 12, "temperature": 0, **more})


def text_of(response):
    return "".join(p["text"] for i in response["output"] if i["type"] == "message" for p in i["content"])


def whole_and_streamed_answers_are_the_same():
    status, _, whole = respond(instructions="Be brief.", metadata={"a": "b"})
    assert status == 200 and whole["object"] == "response" and whole["id"].startswith("resp_"), whole
    assert whole["status"] in ("completed", "incomplete") and whole["error"] is None
    assert whole["metadata"] == {"a": "b"} and whole["instructions"] == "Be brief." and whole["store"] is True
    if whole["status"] == "incomplete":
        assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    u = whole["usage"]
    assert 0 < u["output_tokens"] <= 12 and u["total_tokens"] == u["input_tokens"] + u["output_tokens"], u
    parts = events(respond(instructions="Be brief.", stream=True)[2])
    assert [p["sequence_number"] for p in parts] == list(range(len(parts)))
    kinds = [p["type"] for p in parts]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"], kinds
    assert kinds[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"], kinds
    assert kinds[-1] == "response." + whole["status"], kinds
    text = "".join(p["delta"] for p in parts if p["type"] == "response.output_text.delta")
    assert text == text_of(whole) == parts[-4]["text"] == text_of(parts[-1]["response"])
    assert parts[0]["response"]["status"] == "in_progress" and parts[0]["response"]["output"] == []
    assert parts[-1]["response"]["usage"]["output_tokens"] == u["output_tokens"]
    ids = {p["item_id"] for p in parts if "item_id" in p}
    assert ids == {parts[-1]["response"]["output"][0]["id"]}, ids


def it_says_what_a_chat_says():
    chat = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the sea?"}], "max_tokens": 12, "temperature": 0}
    said = call(url, "/v1/chat/completions", chat)[2]
    got = respond(instructions="Be brief.")[2]
    assert text_of(got) == said["choices"][0]["message"]["content"]
    assert got["usage"]["input_tokens"] == said["usage"]["prompt_tokens"]


def a_conversation_goes_on_by_its_id():
    first = respond()[2]
    answer = text_of(first)
    second = respond(input="And the sky?", previous_response_id=first["id"])[2]
    assert second["previous_response_id"] == first["id"]
    talk = [{"role": "user", "content": "What is the sea?"}, {"role": "assistant", "content": [{"type": "output_text", "text": answer}]},
            {"role": "user", "content": [{"type": "input_text", "text": "And the sky?"}]}]
    by_hand = respond(input=talk)[2]
    assert text_of(second) == text_of(by_hand) and second["usage"]["input_tokens"] == by_hand["usage"]["input_tokens"]
    assert second["usage"]["input_tokens_details"]["cached_tokens"] > 0
    kept = call(url, "/v1/responses/" + second["id"])[2]
    assert kept == second
    items = call(url, "/v1/responses/" + second["id"] + "/input_items")[2]
    assert items["object"] == "list" and [i["content"][0]["text"] for i in items["data"]] == ["And the sky?"], items
    assert items["first_id"] == items["data"][0]["id"]
    assert call(url, "/v1/responses/" + second["id"], method="DELETE")[2]["deleted"] is True
    assert call(url, "/v1/responses/" + second["id"])[0] == 404 and call(url, "/v1/responses/" + second["id"], method="DELETE")[0] == 404
    # A stream is kept as well; one that asks for it is not.
    streamed = events(respond(stream=True)[2])[-1]["response"]
    assert call(url, "/v1/responses/" + streamed["id"])[2] == streamed
    quiet = respond(store=False)[2]
    assert quiet["store"] is False and call(url, "/v1/responses/" + quiet["id"])[0] == 404
    status, _, bad = respond(previous_response_id=quiet["id"])
    assert status == 400 and bad["error"]["param"] == "previous_response_id", bad


def functions_are_called_and_answered():
    whole = respond(tools=[tool], tool_choice="required", max_output_tokens=600)[2]
    use = whole["output"][-1]
    assert use["type"] == "function_call" and use["name"] == "look" and json.loads(use["arguments"])["at"] in ("sea", "sky"), whole
    assert whole["tools"][0]["name"] == "look" and whole["tool_choice"] == "required"
    parts = events(respond(tools=[tool], tool_choice={"type": "function", "name": "look"}, max_output_tokens=600, stream=True)[2])
    added = next(p for p in parts if p["type"] == "response.output_item.added")["item"]
    assert added["type"] == "function_call" and added["arguments"] == "" and added["call_id"]
    text = "".join(p["delta"] for p in parts if p["type"] == "response.function_call_arguments.delta")
    done = next(p for p in parts if p["type"] == "response.function_call_arguments.done")
    assert done["arguments"] == text and done["name"] == "look" and json.loads(text)["at"] in ("sea", "sky")
    result = [{"type": "function_call_output", "call_id": use["call_id"], "output": "It is wet."}]
    later = respond(input=result, previous_response_id=whole["id"], tools=[tool], tool_choice="none")[2]
    assert later["output"][0]["type"] == "message" and later["usage"]["input_tokens"] > whole["usage"]["input_tokens"]
    assert respond(input=[{"role": "user", "content": "x"}, use, *result])[0] == 200


def reasoning_is_an_item_of_its_own():
    ask = {"grammar": 'root ::= "<think>Hm, wet.</think>Yes."', "max_output_tokens": 60}
    whole = respond(**ask)[2]
    assert [i["type"] for i in whole["output"]] == ["reasoning", "message"], whole["output"]
    assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm, wet."}] and text_of(whole) == "Yes."
    assert 0 < whole["usage"]["output_tokens_details"]["reasoning_tokens"] < whole["usage"]["output_tokens"]
    parts = events(respond(stream=True, **ask)[2])
    assert "".join(p["delta"] for p in parts if p["type"] == "response.reasoning_text.delta") == "Hm, wet."
    assert [p["output_index"] for p in parts if p["type"] == "response.output_item.done"] == [0, 1]
    assert respond(input="And?", previous_response_id=whole["id"])[0] == 200


def schemas_make_valid_json():
    for stream in (False, True):
        form = {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": schema}}
        got = respond(text=form, max_output_tokens=600, stream=stream)[2]
        got = events(got)[-1]["response"] if stream else got
        assert json.loads(text_of(got))["at"] in ("sea", "sky") and got["text"] == form


def logprobs_come_with_the_text():
    ask = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    part = respond(**ask)[2]["output"][0]["content"][0]
    assert "".join(p["token"] for p in part["logprobs"]).startswith(part["text"]) and len(part["logprobs"][0]["top_logprobs"]) == 2
    parts = events(respond(stream=True, **ask)[2])
    deltas = [p for p in parts if p["type"] == "response.output_text.delta"]
    assert all(len(d["logprobs"]) >= 1 for d in deltas), deltas[0]


def long_conversations_are_cut_where_asked():
    long = [{"role": "user", "content": "sea " * 3000}] * 30 + [{"role": "user", "content": "And now?"}]
    status, _, bad = respond(input=long)
    assert status == 400 and "context" in bad["error"]["message"]
    assert respond(input=long, truncation="auto")[0] == 200


def bad_requests_get_a_reason():
    for more, param in [({"input": None}, "input"), ({"input": []}, "input"), ({"input": 5}, "input"), ({"input": ["x"]}, "input"),
                        ({"input": [{"role": "pirate", "content": "x"}]}, "input"), ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
                        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
                        ({"input": [{"type": "function_call", "call_id": "x"}]}, "input"),
                        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input"), ({"background": True}, "background"),
                        ({"conversation": "x"}, "conversation"), ({"prompt": {"id": "x"}}, "prompt"), ({"tools": {}}, "tools"),
                        ({"tools": [{"type": "web_search"}]}, "tools"), ({"instructions": 5}, "instructions"), ({"metadata": 5}, "metadata"),
                        ({"previous_response_id": 5}, "previous_response_id"), ({"previous_response_id": "resp_no"}, "previous_response_id"),
                        ({"text": 5}, "text"), ({"text": {"format": {"type": "xml"}}}, "response_format"), ({"store": 1}, "store"),
                        ({"max_output_tokens": 0}, "max_output_tokens"), ({"stream": "yes"}, "stream"), ({"top_logprobs": 99}, "top_logprobs")]:
        status, _, answer = respond(**more)
        assert status == 400 and answer["error"]["param"] == param, (more, status, answer)
    assert call(url, "/v1/responses/resp_no")[0] == 404 and call(url, "/v1/responses/resp_no/other")[0] == 404
    assert call(url, "/v1/responses/resp_no/input_items", method="DELETE")[0] == 405 and call(url, "/v1/responses")[0] == 405


for name, check in list(globals().items()):
    if callable(check) and getattr(check, "__module__", "") == "__main__" and "_" in name and name != "text_of":
        check()
