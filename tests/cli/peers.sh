#!/usr/bin/env bash
# Peers that we are measured against get their best settings, whoever starts the script: a stand-in
# for each library says what it was loaded with.
set -euo pipefail
command -v python3 >/dev/null || { echo "no python3: skipped"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for library in llama_cpp faiss; do
    echo 'import os; print(os.environ.get("OMP_WAIT_POLICY")); os._exit(0)' >"$work/$library.py"
done
loaded_with() { # POLICY SCRIPT WORDS...
    local want=$1 got
    shift
    got=$(PYTHONPATH=$work PYTHONUNBUFFERED=1 python3 "$SRC_DIR/bench/peers/$1" "${@:2}")
    [ "$got" = "$want" ] || { echo "$1 loads its peer with OMP_WAIT_POLICY=$got, not $want"; exit 1; }
}
unset OMP_WAIT_POLICY
for script in llama.py vectors.py kmeans.py; do loaded_with passive "$script" run; done
export OMP_WAIT_POLICY=active
for script in llama.py vectors.py kmeans.py; do loaded_with active "$script" run; done
