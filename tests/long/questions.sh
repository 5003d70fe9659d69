#!/bin/bash
# The thirty plain questions with the default settings, where SmolLM2-135M is in the model folder: at
# least 60 of 90 answers are good, and none is a loop.
command -v python3 >/dev/null || exit 77
folder=${KERMES_MODELS:-${XDG_DATA_HOME:-$HOME/.local/share}/kermes/models}
model=$(find -L "$folder" -maxdepth 2 -name 'SmolLM2-135M-Instruct.Q4_1.gguf' 2>/dev/null | head -n 1)
[ -n "$model" ] || { echo "skipped: scripts/get-model has not been run"; exit 77; }
exec python3 "$SRC_DIR/bench/questions/ask" --kermes "$KERMES" --model "$model" --least 60
