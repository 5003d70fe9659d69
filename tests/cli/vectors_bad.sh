#!/bin/bash
# What the commands on vectors are given and cannot use: one clear line each, and an index that was
# there stays as it was, also when the disk is full or the process is killed.
. "$(dirname "$0")/lib.bash"
cd "$work" || exit 1
raw=(--dim 16 --dtype u8)
noise 48000 >base.raw
expect 0 compress base.raw "${raw[@]}" -o good.kmx --bytes 16 --quiet
sum=$(md5sum <good.kmx)
unchanged() { [ "$sum" = "$(md5sum <good.kmx)" ] || fail "the index changed: $*"; }

# Vectors that are none
expect_error 1 compress none.npy -o good.kmx
says err 'No such file'
expect_error 1 compress base.raw -o good.kmx
says err '--dim N'
expect_error 1 compress base.raw -o good.kmx --dim 7 --dtype u8
says err 'whole vector'
: >empty.npy
expect_error 1 compress empty.npy -o good.kmx
expect_error 1 compress base.raw -o good.kmx --dim 16 --dtype f31
expect_error 1 compress base.raw "${raw[@]}" -o good.kmx --bytes 4 --ratio 8
says err 'only one'
expect_error 1 compress base.raw "${raw[@]}" -o good.kmx --ratio 500
says err 'no room for codes'
expect_error 1 compress base.raw "${raw[@]}" -o good.kmx --memory 1M
says err 'take at least 25 MiB'
expect_error 1 compress base.raw "${raw[@]}" -o no/such/folder.kmx
says err "no/such/folder.kmx"
unchanged "bad vectors"

# A NaN in vector 5, an infinity in vector 9, of 4 f32 each
head -c 160 /dev/zero >nan.raw
printf '\0\0\300\177' | dd of=nan.raw bs=1 seek=84 conv=notrunc 2>err
printf '\0\0\200\377' | dd of=nan.raw bs=1 seek=144 conv=notrunc 2>err
expect_error 1 compress nan.raw --dim 4 -o good.kmx
says err 'vector 5 holds a NaN or an infinity'
expect 0 compress nan.raw --dim 4 -o skipped.kmx --skip-bad --json
json_says vectors=8 skipped=2
expect 0 decompress skipped.kmx -o skipped.npy --ids-out ids.npy
expect_error 1 search skipped.kmx --query '1,nan,2,3'
says err 'query 0'
expect_error 1 search skipped.kmx --queries nan.raw --dim 4
expect_error 1 add skipped.kmx nan.raw --dim 4
says err 'vector 5'

# Queries, ids and dimensions that do not fit
expect_error 1 search good.kmx --query '1,2,3'
says err '3 numbers'
expect_error 1 search good.kmx --query 'one two'
says err 'no number'
expect_error 1 search good.kmx --queries nan.raw --dim 4
says err 'dimensions'
expect_error 1 search good.kmx --query '1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16' --allow 5-x
expect_error 1 search good.kmx --query '1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16' --exact-rerank
says err '--rerank'
expect_error 1 add good.kmx nan.raw --dim 4
expect_error 1 merge good.kmx skipped.kmx -o both.kmx
says err 'different dimensions'
expect_error 1 delete good.kmx --ids 999999
says err 'no vector with id 999999'
expect_error 1 decompress good.kmx -o x.npy --ids 999999
[ ! -e x.npy ] || fail "half a file was left"
unchanged "bad queries"

# Files that are no index, or damaged ones
expect_error 1 search base.raw --query 1
says err 'no .kmx index'
head -c 9000 good.kmx >cut.kmx
expect_error 1 search cut.kmx --query 1
says err 'cut short'
expect_error 1 info cut.kmx
cp good.kmx flipped.kmx
size=$(stat -c %s flipped.kmx)
for part in 2 3 4 5 6 7; do # somewhere in each part of the file
    cp good.kmx flipped.kmx
    at=$((size * part / 8))
    byte=$(od -An -tu1 -j $at -N1 good.kmx)
    printf "\\x$(printf %x $((byte ^ 16)))" | dd of=flipped.kmx bs=1 seek=$at conv=notrunc 2>err
    expect_error 1 info flipped.kmx --verify
    says err 'damaged index'
done
printf '{"format": "kmx-manifest", "version": 2, "parts": [{}]}' >new.kmx
expect_error 1 search new.kmx --query 1
says err 'newer Kermes'

# No space: files may not grow beyond 16 KiB, and the signal for it is ignored
(
    trap '' XFSZ
    ulimit -f 16
    expect_error 1 compress base.raw "${raw[@]}" -o good.kmx --bytes 16 --quiet
    says err 'File too large'
    expect_error 1 delete good.kmx --ids 1 --quiet
    says err 'File too large'
    expect_error 1 decompress good.kmx -o back.npy --quiet
) || exit 1
unchanged "no space"
[ ! -e back.npy ] || fail "half a file was left"

# Killed at any moment: the old index is there and whole, until the new one is
RANDOM=${KERMES_KILL_SEED:-5}
kills=0
for round in $(seq 12); do
    "$KERMES" compress base.raw "${raw[@]}" -o good.kmx --bytes 12 --seed "$round" --quiet \
        >out 2>err &
    pid=$!
    sleep "$(printf '0.%03d' $((RANDOM % 300)))"
    kill -9 "$pid" 2>err && kills=$((kills + 1))
    wait "$pid" 2>err
    expect 0 info good.kmx --verify --json
    json_says index.vectors=3000
done
[ "$kills" -gt 0 ] || fail "nothing was killed: this test tested nothing"
