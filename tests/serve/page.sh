#!/bin/bash
# The chat page and the status page in a headless Chromium.
. "$(dirname "$0")/serve.bash"
if [ ! -x /usr/bin/chromedriver ] || ! /usr/bin/python3 -c "import selenium" 2>/dev/null; then
    echo "skipped: no chromium-driver, or no python3-selenium"
    exit 77
fi
start_server
HOME=$tmp timeout 120 /usr/bin/python3 "$(dirname "$0")/page.py" "$url" ${KERMES_SHOTS:+"$KERMES_SHOTS"} || exit 1
stop_server TERM
