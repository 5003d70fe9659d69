#!/bin/bash
# Minutes of mixed load with clients that leave at random: nobody waits in vain, nothing is left over, and
# what finishes is what the same request gives alone. A second server has so few pages that answers are set
# aside. KERMES_STORM_SECONDS is for each of the two; builds with sanitizers are run by hand the same way.
. "$(dirname "$0")/../serve/serve.bash"
python3 "$(dirname "$0")/../serve/adapters.py" make "$tmp/red" 1 0.3 || exit 1
for pages in "--cache-memory 64" "--cache-memory 1 --reserve 8 --second-cache 16"; do
    start_server --parallel 8 --queue 64 --lora "red=$tmp/red" $pages --reproducible
    python3 "$(dirname "$0")/../serve/storm.py" "$url" "${KERMES_STORM_SECONDS:-120}" 48 || exit 1
    stop_server TERM
done
