#!/bin/bash
# The budget of compress on files of 615 MB and 2 GB, as cli/vectors_memory.sh does on small ones.
KERMES_LONG_MEMORY=1 exec bash "$(dirname "$0")/../cli/vectors_memory.sh"
