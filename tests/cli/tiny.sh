#!/bin/bash
# The tiny model that is shipped: it answers what it was taught, in a chat and with every cache.
. "$(dirname "$0")/lib.bash"
model=$SRC_DIR/models/kermes-tiny.gguf

expect 0 info "$model" --json
json_says kind=gguf model.architecture=llama tokenizer.chat_template=true
while IFS='|' read -r question answer; do
    expect 0 run -m "$model" --chat --prompt "$question" --temperature 0 -n 60 --quiet
    says out "$answer"
done <<'DIALOGUE'
Who are you?|Kermes trained
What is Kermes?|a local AI engine written in C
What is 3 + 4?|3 plus 4 is 7.
What is the capital of France?|Paris
Name three colours.|Red, green and blue.
DIALOGUE
for cache in q8_0 q4_0; do
    expect 0 run -m "$model" --chat --prompt 'Who are you?' --temperature 0 --cache-type "$cache" --quiet
    says out 'tiny language model'
done
