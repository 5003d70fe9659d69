"""Programs built on the official clients, against a running server: litellm, langchain, instructor, pydantic-ai, llm.
Arguments: the server, a folder for what they write, the folder of their commands."""
import asyncio
import os
import subprocess
import sys
import typing

url, folder, commands = sys.argv[1:4]
os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LLM_USER_PATH=folder + "/llm", HOME=folder, OPENAI_API_KEY="none")

import instructor
import litellm
import openai
import pydantic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

user = [{"role": "user", "content": "What is the sea?"}]


class Place(pydantic.BaseModel):
    """Where to look."""
    at: typing.Literal["sea", "sky"]


def litellm_asks_in_every_dialect():
    for model, base in (("openai/x", url + "/v1"), ("anthropic/x", url), ("ollama_chat/x", url)):
        ask = {"model": model, "api_base": base, "api_key": "none", "messages": user, "max_tokens": 12, "temperature": 0}
        whole = litellm.completion(**ask).choices[0].message.content
        parts = "".join(c.choices[0].delta.content or "" for c in litellm.completion(stream=True, **ask))
        assert whole and parts == whole, (model, parts, whole)
    vectors = litellm.embedding(model="openai/x", api_base=url + "/v1", api_key="none", input=["The sea", "The sky"]).data
    assert len(vectors) == 2 and len(vectors[0]["embedding"]) == 128


def langchain_chats_calls_and_embeds():
    @tool
    def look(at: typing.Literal["sea", "sky"]) -> str:
        """Looks."""
        return "It is wet."
    model = ChatOpenAI(model="x", base_url=url + "/v1", api_key="none", max_tokens=600, temperature=0)
    short = ChatOpenAI(model="x", base_url=url + "/v1", api_key="none", max_tokens=12, temperature=0)
    whole = short.invoke("What is the sea?")
    assert "".join(c.content for c in short.stream("What is the sea?")) == whole.content and whole.usage_metadata["total_tokens"] > 0
    called = model.bind_tools([look], tool_choice="required").invoke("Look!")
    assert called.tool_calls[0]["name"] == "look" and called.tool_calls[0]["args"]["at"] in ("sea", "sky")
    assert model.with_structured_output(Place).invoke("Where?").at in ("sea", "sky")
    responses = ChatOpenAI(model="x", base_url=url + "/v1", api_key="none", max_tokens=12, temperature=0, use_responses_api=True)
    assert responses.invoke("What is the sea?").text
    embeddings = OpenAIEmbeddings(model="x", base_url=url + "/v1", api_key="none", check_embedding_ctx_length=False)
    assert len(embeddings.embed_documents(["The sea", "The sky"])[1]) == 128


def instructor_fills_forms():
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        got = instructor.from_openai(client, mode=mode).chat.completions.create(model="x", response_model=Place, messages=user, max_tokens=600)
        assert got.at in ("sea", "sky"), mode


def pydantic_ai_runs_agents():
    """Structured answers by a tool, whole and streamed; a tool of the agent's own that the model may call."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    model = OpenAIChatModel("x", provider=OpenAIProvider(base_url=url + "/v1", api_key="none"))
    settings = {"max_tokens": 600, "temperature": 0}
    got = Agent(model, output_type=Place, model_settings=settings).run_sync("Where?")
    usage = got.usage() if callable(got.usage) else got.usage
    assert got.output.at in ("sea", "sky") and usage.output_tokens > 0
    agent = Agent(model, model_settings={"max_tokens": 12, "temperature": 0})
    whole = agent.run_sync("What is the sea?").output

    async def streamed():
        async with agent.run_stream("What is the sea?") as run:
            return [text async for text in run.stream_text()][-1]
    assert asyncio.run(streamed()) == whole


def llm_asks_from_the_shell():
    os.makedirs(folder + "/llm", exist_ok=True)
    with open(folder + "/llm/extra-openai-models.yaml", "w") as f:
        f.write(f"- model_id: kermes\n  model_name: x\n  api_base: {url}/v1\n")
    for how in ([], ["--no-stream"]):
        line = [commands + "/llm", "-m", "kermes", "--key", "none", "-o", "max_tokens", "12", *how, "What is the sea?"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and done.stdout.strip(), done.stderr


for name, check in list(globals().items()):
    if callable(check) and getattr(check, "__module__", "") == "__main__" and name.islower() and "_" in name:
        check()
        print("fine:", name.replace("_", " "))
