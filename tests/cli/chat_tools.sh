#!/bin/bash
# kermes chat --tools: calls that the model makes are shown and answered, by a command or by the person,
# and the conversation goes on with the results.
. "$(dirname "$0")/lib.bash"
export KERMES_MODELS=$work/models KERMES_HISTORY=
model=$SRC_DIR/models/kermes-tiny.gguf
call=$work/call.gbnf
echo 'root ::= "<tool_call>{\"name\": \"look\", \"arguments\": {\"at\": \"sea\"}}</tool_call>"' >"$call"
echo 'root ::= "Good day."' >"$work/plain.gbnf"
parameters='{"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}'
tools() { # tools COMMAND: a file with one tool; COMMAND: JSON, or nothing
    printf '[{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": %s}%s}]' \
        "$parameters" "${1:+, \"command\": $1}" >"$work/tools.json"
}
talk() {
    local wanted=$1 input=$2 code=0
    shift 2
    printf "$input" | "$KERMES" chat -m "$model" --threads 1 "$@" >"$work/out" 2>"$work/err" || code=$?
    [ "$code" -eq "$wanted" ] || fail "chat $*: exit code $code, not $wanted"
}

# A command gets the arguments on its standard input. This grammar allows nothing but calls, so the number
# of them for one question is what ends it.
tools "\"cat >>'$work/calls'; echo 'It is <|im_end|>wet.'\""
talk 0 'What is there?\n' --tools "$work/tools.json" --grammar "$call" --shift --json
grep -q 'look({"at": "sea"})' "$work/err" || fail "the call is not shown"
grep -q '8 calls one after the other' "$work/err" || fail "calls without end are not ended"
[ "$(grep -o '"at": "sea"' "$work/calls" | wc -l)" -eq 8 ] || fail "the command was not run 8 times"
json_says messages.0.role=user messages.1.role=assistant messages.1.tool_calls.0.function.name=look \
    messages.1.tool_calls.0.function.arguments.at=sea messages.2.role=tool messages.2.name=look
grep -q '<|im_end|>' "$work/out" && fail "a control token of a result reached the conversation"
grep -q 'wet' "$work/out" || fail "the result is not there"

# A list of words is run as it is; a command that fails is told to the model.
tools '["sh", "-c", "echo half; exit 3"]'
talk 0 'What is there?\n' --tools "$work/tools.json" --grammar "$call" --json --shift
grep -q 'failed with 3' "$work/err" || fail "a command that failed is not told"
grep -q 'half\\nerror: the tool failed with code 3' "$work/out" || fail "the model is not told that it failed"
tools '["/no/such/command"]'
talk 1 'What is there?\n' --tools "$work/tools.json" --grammar "$call" --json --shift
grep -q "cannot be run" "$work/err" || fail "a command that is not there is not told"

# Without a command the next line is the result; without a line the question is dropped.
tools
talk 0 'What is there?\nnothing\n' --tools "$work/tools.json" --grammar "$call" --json
grep -q '"messages": \[\]' "$work/out" || fail "a question whose call nobody answered stays"
talk 0 'What is there?\na\nb\nc\nd\ne\nf\ng\nh\n/save '"$work"'/talk\n/load '"$work"'/talk\n' \
    --tools "$work/tools.json" --grammar "$call" --json --shift
grep -q 'ends with\|is of' "$work/err" && fail "what was saved cannot be loaded"

# An answer that calls nothing is an answer as ever.
talk 0 'Hello\n' --tools "$work/tools.json" --grammar "$work/plain.gbnf" --quiet
[ "$(cat "$work/out")" = "Good day." ] || fail "a plain answer is another one with tools"

# Files that are no tools: one line each.
bad() {
    printf '%s' "$1" >"$work/bad.json"
    talk 1 'x\n' --tools "$work/bad.json"
    grep -q "$2" "$work/err" || fail "not told: $2"
}
bad '' 'no JSON'
bad '{}' 'no list'
bad '[]' 'no list'
bad '[5]' 'no object'
bad '[{"function": {}}]' 'no name'
bad '[{"name": "a"}, {"name": "a"}]' 'taken'
bad '[{"name": "a", "parameters": 5}]' 'schema'
bad '[{"name": "a", "command": 5}]' 'command'
talk 1 'x\n' --tools "$work/none.json"
says err none.json
exit 0
