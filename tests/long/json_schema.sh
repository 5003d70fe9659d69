#!/usr/bin/env bash
# What can be written under a JSON schema, judged by another validator: random texts of every schema
# in the tests go to jsonschema (PyPI, with its extra "format"). KERMES_PYTHON names a Python that
# has it; without one the test is skipped.
set -euo pipefail
python=${KERMES_PYTHON:-python3}
"$python" -c 'import jsonschema' 2>/dev/null ||
    { echo "no Python with jsonschema (KERMES_PYTHON): skipped"; exit 77; }
tests=$(dirname "$KERMES")/tests
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for name in json_schema json_schema_format json_schema_choice; do
    [ -x "$tests/test_text_$name" ] || { echo "no $tests/test_text_$name: skipped"; exit 77; }
    KERMES_SCHEMA_TEXTS=$work/texts KERMES_SCHEMA_ROUNDS=${ROUNDS:-100} \
        "$tests/test_text_$name" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
done
"$python" - "$work/texts" <<'PY'
import collections, json, sys
from jsonschema import Draft202012Validator

checker = Draft202012Validator.FORMAT_CHECKER
wrong = collections.Counter()
texts = 0
for line in open(sys.argv[1], encoding="utf-8"):
    schema, text = json.loads(line)
    schema, value = json.loads(schema), json.loads(text)
    texts += 1
    if "components" in schema:
        continue  # the discriminator decides, of which JSON schema knows nothing
    if "[^\\w" in schema.get("pattern", ""):
        continue  # Python's \\w has the letters of all scripts, ECMAScript's has not
    for error in Draft202012Validator(schema, format_checker=checker).iter_errors(value):
        wrong[json.dumps(schema)] += 1
        if wrong[json.dumps(schema)] == 1:
            print(f"{json.dumps(schema)}\n    {text}\n    {error.message}")
        break
formats = sorted(checker.checkers)
print(f"{texts} texts, {sum(wrong.values())} wrong; formats checked: {', '.join(formats)}")
sys.exit(1 if wrong or not texts else 0)
PY
