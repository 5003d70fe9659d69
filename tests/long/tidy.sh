#!/bin/sh
# clang-tidy finds no bug in any source.
TIDY_ALL=1 exec "$(dirname "$0")/../house/tidy.sh"
