#!/bin/bash
# The chat page and the status page in a headless Chromium.
. "$(dirname "$0")/serve.bash"
if [ ! -x /usr/bin/chromedriver ] || ! /usr/bin/python3 -c "import selenium" 2>/dev/null; then
    echo "skipped: no chromium-driver, or no python3-selenium"
    exit 77
fi
mkdir "$tmp/other"
cp "$root/models/kermes-tiny.gguf" "$tmp/other/second.gguf"
printf "A page about the sea.\n%.0s" 1 2 3 >"$tmp/sea.txt"
start_server -m "$tmp/other/second.gguf"
HOME=$tmp timeout 120 /usr/bin/python3 "$(dirname "$0")/page.py" "$url" "$tmp" ${KERMES_SHOTS:+"$KERMES_SHOTS"} || exit 1
stop_server TERM
