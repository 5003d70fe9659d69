#!/bin/bash
# Minutes of mixed load with clients that leave at random: nobody waits in vain, nothing is left over, and
# what finishes is what the same request gives alone.
. "$(dirname "$0")/../serve/serve.bash"
start_server --parallel 8 --queue 64 --cache-memory 64
python3 "$(dirname "$0")/../serve/storm.py" "$url" "${KERMES_STORM_SECONDS:-120}" 48 || exit 1
stop_server TERM
