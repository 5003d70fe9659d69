#!/bin/bash
# kermes run --prompts: many prompts in one batch give the texts that each gives alone; bad lines lose
# nothing; a call that was killed is gone on with, half a last line included.
. "$(dirname "$0")/lib.bash"
command -v python3 >/dev/null 2>&1 || { echo "skipped: no python3"; exit 77; }
model=$SRC_DIR/models/kermes-tiny.gguf
many() { expect "$1" run -m "$model" --prompts "${@:2}"; }

# Every kind of line, and every way for one to be wrong.
python3 - "$work/in" <<'PYTHON'
import json, sys
lines = [{"prompt": f"The {w} is", "max_tokens": 3 + i, "id": f"p{i}"} for i, w in enumerate("sea sky cat sun day man dog red".split())]
lines += [{"text": "The sea", "temperature": 0, "max_tokens": 8}, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "system": "Be kind."},
          {"prompt": "A cat: ", "json_schema": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"], "additionalProperties": False}, "max_tokens": 200},
          {"prompt": "abc", "grammar": 'root ::= "yes" | "no"', "id": 7}, {"prompt": "The sea", "temperature": 0, "max_tokens": 30, "stop": ["."]},
          {"prompt": "The sea", "seed": 41, "top_k": 5, "max_tokens": 8, "metadata": {"any": 1}, "logit_bias": {"5": -100}}]
wrong = ['{"prompt": "half', '[1, 2]', '"text"', '{}', '{"prompt": 5}', '{"prompt": ""}', '{"prompt": "a", "messages": []}', '{"messages": []}',
         '{"messages": [5]}', '{"prompt": "a", "temprature": 1}', '{"prompt": "a", "temperature": -1}', '{"prompt": "a", "top_k": 1.5}',
         '{"prompt": "a", "max_tokens": 0}', '{"prompt": "a", "seed": -1}', '{"prompt": "a", "stop": [1]}', '{"prompt": "a", "id": [1]}',
         '{"prompt": "a", "json_schema": {"type": 5}}', '{"prompt": "a", "grammar": "root ::= nothing"}', '{"prompt": "a", "logit_bias": {"x": 1}}',
         '{"prompt": "a", "prompt": "b"}', '{"prompt": "\\ud800"}', '{"prompt": "a", "grammar": "root ::= \\"a\\"", "schema": {}}', '\x00', '{"prompt": "' + "word " * 9000 + '"}']
with open(sys.argv[1], "wb") as f:
    for i in range(max(len(lines), len(wrong))):
        if i < len(wrong): f.write(wrong[i].encode() + b"\n")
        if i % 5 == 2: f.write(b"  \n")
        if i < len(lines): f.write(json.dumps(lines[i]).encode() + b"\n")
    f.write(b'\xff\xfe{"prompt": "no UTF-8"}\n' + b'{"prompt": "The end", "max_tokens": 4}')
PYTHON
many 0 "$work/in" -o "$work/answers" --parallel 5 --json
json_says answered=15 failed=25 there_already=0 tokens:number tokens_per_s:number
says err '25 lines could not be answered: "error" in the output says why'
python3 - "$KERMES" "$model" "$work/in" "$work/answers" <<'PYTHON' || fail "the answers are not right"
import json, subprocess, sys
kermes, model, lines, answers = sys.argv[1:]
lines = open(lines, "rb").read().split(b"\n")
answers = [json.loads(line) for line in open(answers)]
assert sorted(a["index"] for a in answers) == [i for i, l in enumerate(lines) if l.strip()]
compared = 0
for a in answers:
    if "error" in a:
        assert set(a) <= {"index", "id", "error", "input"} and a["error"]["message"], a
        continue
    line = json.loads(lines[a["index"]])
    assert a.get("id") == line.get("id"), a
    assert a["seed"] == line.get("seed", 1 + a["index"]), a
    if "json_schema" in line:
        assert isinstance(json.loads(a["text"])["n"], int)
    if "grammar" in line:
        assert a["text"] in ("yes", "no") and a["end"] == "grammar", a
    if "stop" in line:
        assert "." not in a["text"] and a["end"] == "stop", a
    if compared == 4 or not {"prompt", "text"} & set(line) or set(line) & {"grammar", "json_schema", "stop", "logit_bias"}:
        continue
    compared += 1
    text = line.get("prompt") or line["text"]
    alone = subprocess.run([kermes, "run", "-m", model, "-p", text, "-n", str(line["max_tokens"]), "-s", str(a["seed"]), "--json", "--temperature",
                            str(line.get("temperature", 0.8)), "--allow-loops"], capture_output=True, check=True).stdout
    assert json.loads(alone)["text"] == a["text"], (alone, a)
assert compared == 4
PYTHON

# The same call again does nothing; other prompts are never taken for these.
cp "$work/answers" "$work/before"
many 0 "$work/in" -o "$work/answers" --json
json_says answered=0 there_already=40
cmp -s "$work/answers" "$work/before" || fail "a second call changed the answers"
echo '{"prompt": "another"}' >"$work/other"
expect_error 1 run -m "$model" --prompts "$work/other" -o "$work/answers"
says err "answers another line 1 than there is now"
cmp -s "$work/answers" "$work/before" || fail "the answers of other prompts changed"
expect_error 1 run -m "$model" --prompts "$work/in" -o "$work/in"
echo 'notes of mine
and more' >"$work/notes"
expect_error 1 run -m "$model" --prompts "$work/other" -o "$work/notes"
says err "line 1 of '$work/notes' is no answer of kermes run"

# A pipe in, a pipe out; --strict stops, and what ran is there.
expect_pipe() { "$KERMES" run -m "$model" --prompts - "$@" >"$work/out" 2>"$work/err"; }
printf '{"prompt": "The sea", "max_tokens": 3}\n{"prompt": "The sky", "max_tokens": 3}\n{"nothing": 1}\n' |
    expect_pipe --strict && fail "--strict went on"
[ "$(grep -c '"text":' "$work/out")" -eq 2 ] || fail "--strict lost an answer"
says err "kermes: line 3: there is no field 'nothing'"
expect_error 2 run -m "$model" --strict abc
expect_error 2 run -m "$model" --prompts "$work/in" abc
expect_error 2 run -m "$model" --prompts "$work/in" --draft lookup
expect_error 1 run -m "$model" --prompts "$work/none" -o "$work/none.out"
expect_error 1 run -m "$model" --prompts "$work/other" -o "$work/none/out"
if [ -w /dev/full ]; then
    expect_error 1 run -m "$model" --prompts "$work/other" -o /dev/full
    says err "No space left on device"
fi

# Killed in the middle, with half a line at the end: the second call makes the rest, to the letter. Little
# memory for keys and values changes nothing but the speed.
python3 -c '
import json, os
for i in range(50 if "ASAN_OPTIONS" in os.environ else 150): print(json.dumps({"prompt": f"The number {i % 50} and the sea of {i}", "max_tokens": 40, "ignore_eos": True}))' >"$work/long"
many 0 "$work/long" -o "$work/whole" --parallel 16
many 0 "$work/long" -o "$work/short" --parallel 16 --cache-memory 1
"$KERMES" run -m "$model" --prompts "$work/long" -o "$work/killed" --quiet &
job=$!
while [ "$(cat "$work/killed" 2>/dev/null | wc -l || echo 0)" -lt 20 ] && kill -0 $job 2>/dev/null; do sleep 0.01; done
kill -9 $job 2>/dev/null
wait $job 2>/dev/null
head -c -20 "$work/killed" >"$work/half"
mv "$work/half" "$work/killed"
many 0 "$work/long" -o "$work/killed" --json
json_says there_already:number
for other in killed short; do
    cmp -s <(sort "$work/whole") <(sort "$work/$other") || fail "other answers: $other"
done
exit 0
