#!/usr/bin/env bash
# kermes convert against transformers and gguf. KERMES_PYTHON names a Python that has them; without
# one the test is skipped.
set -euo pipefail
python=${KERMES_PYTHON:-python3}
"$python" -c 'import torch, transformers, gguf' 2>/dev/null ||
    { echo "no Python with torch, transformers and gguf (KERMES_PYTHON): skipped"; exit 77; }
HF_HUB_OFFLINE=1 exec "$python" "$SRC_DIR/scripts/check-convert"
