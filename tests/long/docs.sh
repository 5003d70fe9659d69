#!/bin/bash
# Every line of README and the docs, the long ones too.
KERMES_TEST_LONG=1 exec "$SRC_DIR/tests/docs/lines.sh"
