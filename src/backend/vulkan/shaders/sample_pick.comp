#version 450
#extension GL_GOOGLE_include_directive : require
// Choosing a token: a workgroup to a row. With a top-k, or a min-p alone, the k-th largest peak bounds
// what can be left, and only blocks above it are read again, into a short list; otherwise the whole row
// is looked at. Nothing is sorted: bounds are found digit by digit of the logits' bits, by counts or by
// sums. Sums are of whole numbers (probabilities times 2^36), so that their order is nothing.
#include "sample.glsl"
#include "math.glsl"

const uint LIST = 1024, HOT = 256; // candidates and blocks that shared memory has room for
const uint ROW = 0, SHORT = 1, PEAKS = 2; // what is looked at, in the order of ids

shared float list[LIST];
shared uint list_id[LIST];
shared uint hot[HOT];
shared uint bin[3][256]; // limbs of 12 bits
shared uint part_count[128];
shared uvec2 part_sum[128];
shared uint found, found_ties;
shared uvec2 found_above;

uint row, seen_n; // this workgroup's row; how many there are of what is looked at
float top, temperature;

// ---- Numbers of 64 bits, the low word first ----

uvec2 add(uvec2 a, uvec2 b) {
    uint carry, low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}
uvec2 sub(uvec2 a, uvec2 b) {
    uint borrow, low = usubBorrow(a.x, b.x, borrow);
    return uvec2(low, a.y - b.y - borrow);
}
bool less(uvec2 a, uvec2 b) { return a.y != b.y ? a.y < b.y : a.x < b.x; }
uvec2 times(uvec2 a, uint b) {
    uint high, low;
    umulExtended(a.x, b, high, low);
    return uvec2(low, high + a.y * b);
}
// a b / 2^64
uvec2 times_high(uvec2 a, uvec2 b) {
    uint h00, l00, h01, l01, h10, l10, h11, l11, c0, c1;
    umulExtended(a.x, b.x, h00, l00);
    umulExtended(a.x, b.y, h01, l01);
    umulExtended(a.y, b.x, h10, l10);
    umulExtended(a.y, b.y, h11, l11);
    uint mid = uaddCarry(h00, l01, c0);
    mid = uaddCarry(mid, l10, c1);
    return add(add(uvec2(l11, h11), uvec2(h01, 0)), add(uvec2(h10, 0), uvec2(c0 + c1, 0)));
}

// ---- Probabilities ----

float odds(float x) { return k_exp((x - top) / temperature); }
// floor(2^36 p), as limbs of 12 bits (the last one 13).
uvec3 limbs(float x) {
    float p = odds(x) * 16777216.0;
    uint high = uint(p);
    return uvec3(uint((p - float(high)) * 4096.0), high & 4095u, high >> 12);
}
uvec2 whole(uvec3 l) {
    uvec2 middle = uvec2(l.y << 12, l.y >> 20), high = uvec2(l.z << 24, l.z >> 8);
    return add(add(uvec2(l.x, 0), middle), high);
}
uvec2 weight(float x) { return whole(limbs(x)); }

// ---- What is looked at ----

float at(uint from, uint i) {
    return from == SHORT ? list[i] : from == PEAKS ? Floats(peaks).f[row * blocks + i] : logit(row, i);
}
// The sum of `count` over the threads before this one; all of them in `all`.
uint counts_before(uint count, out uint all) {
    uint t = gl_LocalInvocationID.x, own = 0;
    barrier();
    part_count[t] = count;
    barrier();
    all = 0;
    for (uint i = 0; i < 128; i++) {
        if (i == t) own = all;
        all += part_count[i];
    }
    return own;
}

// ---- Cuts: everything above the key, and the first `ties` of what is just that ----

struct Cut {
    uint key, ties;
};

// The largest digit at which what is in its bin and above reaches `want`, or the lowest that is not
// empty; and what is above it.
uint find_digit(uvec2 want, out uvec2 above) {
    uint t = gl_LocalInvocationID.x;
    if (t < 16) {
        uvec2 s = uvec2(0);
        for (uint k = 0; k < 16; k++) {
            uint b = 255 - 16 * t - k;
            s = add(s, whole(uvec3(bin[0][b], bin[1][b], bin[2][b])));
        }
        part_sum[t] = s;
    }
    barrier();
    if (t == 0) {
        uvec2 sum = uvec2(0), before_last = uvec2(0);
        uint group = 0, last = 0;
        bool done = false;
        for (uint g = 0; g < 16 && !done; g++) { // the group where it is
            if (part_sum[g] == uvec2(0)) continue;
            group = g;
            before_last = sum;
            sum = add(sum, part_sum[g]);
            done = !less(sum, want);
        }
        sum = before_last;
        done = false;
        for (uint k = 0; k < 16 && !done; k++) {
            uint b = 255 - 16 * group - k;
            uvec2 own = whole(uvec3(bin[0][b], bin[1][b], bin[2][b]));
            if (own == uvec2(0)) continue;
            last = b;
            before_last = sum;
            sum = add(sum, own);
            done = !less(sum, want);
        }
        found = last;
        found_above = before_last;
    }
    barrier();
    above = found_above;
    return found;
}

// The cut at which counts, or weights, of what is above `within` reach `want`.
Cut select(uint from, Cut within, bool by_weight, uvec2 want) {
    uint t = gl_LocalInvocationID.x, prefix = 0;
    uvec2 left = want, above;
    for (int shift = 24; shift >= 0; shift -= 8) {
        barrier();
        for (uint i = t; i < 256; i += 128) bin[0][i] = bin[1][i] = bin[2][i] = 0;
        barrier();
        for (uint i = t; i < seen_n; i += 128) {
            float x = at(from, i);
            uint k = key_of(x), digit = k >> shift & 255u;
            if (k < within.key || k == 0) continue;
            if (shift < 24 && k >> shift + 8 != prefix >> shift + 8) continue;
            if (by_weight) {
                uvec3 w = limbs(x);
                if (w.x != 0) atomicAdd(bin[0][digit], w.x);
                if (w.y != 0) atomicAdd(bin[1][digit], w.y);
                if (w.z != 0) atomicAdd(bin[2][digit], w.z);
            } else {
                atomicAdd(bin[0][digit], 1);
            }
        }
        barrier();
        prefix |= find_digit(left, above) << shift;
        left = less(above, left) ? sub(left, above) : uvec2(0);
    }
    // `left` is what the equals of the key must still give: divided by what each gives, upwards.
    uint ties = 1;
    uvec2 each = by_weight ? weight(of_key(prefix)) : uvec2(1, 0);
    if (each != uvec2(0)) {
        float about = (float(left.y) * 4294967296.0 + float(left.x)) /
                      (float(each.y) * 4294967296.0 + float(each.x));
        ties = about > 1048576.0 ? 1048576u : uint(max(about - 2, 0));
        while (ties < 1048580u && less(times(each, ties), left)) ties++;
        ties = max(ties, 1);
    }
    if (prefix == within.key) ties = min(ties, within.ties);
    return Cut(prefix, ties);
}

// ---- Sums in order ----

// A thread's share of what is looked at lies side by side.
uint share_begin(uint t) { return min(t * ((seen_n + 127) / 128), seen_n); }

// Whether an element is left, ties aside.
bool is_left(uint k, float x, Cut cut, float least) {
    return k >= cut.key && k != 0 && !(least > 0 && odds(x) < least);
}

// Each thread's sum of what is above the cut, and how many ties it has.
void sum_parts(uint from, Cut cut, float least) {
    uint t = gl_LocalInvocationID.x, ties = 0;
    uvec2 sum = uvec2(0);
    for (uint i = share_begin(t); i < share_begin(t + 1); i++) {
        float x = at(from, i);
        uint k = key_of(x);
        if (!is_left(k, x, cut, least)) continue;
        if (k > cut.key)
            sum = add(sum, weight(x));
        else
            ties++;
    }
    barrier();
    part_sum[t] = sum;
    part_count[t] = ties;
    barrier();
}

// The sum of all parts; of those before thread `who`, with how many ties they used up; and its own.
uvec2 sum_up(Cut cut, uint who, out uvec2 ahead, out uvec2 own, out uint own_ties) {
    uvec2 one = weight(of_key(cut.key)), total = uvec2(0);
    uint may = cut.ties;
    ahead = own = uvec2(0);
    own_ties = 0;
    for (uint i = 0; i < 128; i++) {
        uint some = min(part_count[i], may);
        uvec2 part = add(part_sum[i], times(one, some));
        if (i == who) {
            ahead = total;
            own = part;
            own_ties = some;
        }
        may -= some;
        total = add(total, part);
    }
    return total;
}

// The number falls on one of what is left: the thread in whose share that is looks closer.
uint draw(uint from, Cut cut, float least, uvec2 number) {
    uint t = gl_LocalInvocationID.x, ties;
    uvec2 ahead, own;
    if (t == 0) found = 0xffffffffu;
    sum_parts(from, cut, least);
    uvec2 want = times_high(sum_up(cut, t, ahead, own, ties), number);
    if (!less(want, ahead) && less(want, add(ahead, own))) {
        for (uint i = share_begin(t); i < share_begin(t + 1); i++) {
            float x = at(from, i);
            uint k = key_of(x);
            if (!is_left(k, x, cut, least)) continue;
            if (k == cut.key && ties-- == 0) {
                ties = 0;
                continue;
            }
            ahead = add(ahead, weight(x));
            if (less(want, ahead)) {
                found = from == SHORT ? list_id[i] : i;
                break;
            }
        }
    }
    barrier();
    return found;
}

uint choose(uint from, uint n, uvec2 number) {
    Cut cut = Cut(1, 0x7fffffffu);
    uint k = count_of(row, TOP_K);
    float top_p = setting(row, TOP_P);
    seen_n = n;
    if (k > 0 && k < n) cut = select(from, cut, false, uvec2(k, 0));
    if (top_p < 1) {
        uvec2 ahead, own;
        uint ties, high, low;
        sum_parts(from, cut, 0);
        uvec2 total = sum_up(cut, 128, ahead, own, ties);
        // top_p 2^32 is whole, or nearly: want = ceil(total top_p).
        uint m = top_p > 0 ? uint(top_p * 4294967296.0) : 0;
        umulExtended(total.x, m, high, low);
        uvec2 want = times(uvec2(total.y, 0), m);
        want = add(want, uvec2(high, 0));
        if (low != 0) want = add(want, uvec2(1, 0));
        if (want == uvec2(0)) want.x = 1;
        cut = select(from, cut, true, want);
    }
    return draw(from, cut, setting(row, MIN_P), number);
}

// ---- The short list ----

// Logits with a key of at least `bound`, in order; 0: too many, or too many blocks have them.
uint gather(uint n, uint bound) {
    uint t = gl_LocalInvocationID.x, each = (blocks + 127) / 128, count = 0, n_hot, all;
    uint begin = min(t * each, blocks), end = min(begin + each, blocks);
    for (uint b = begin; b < end; b++) count += uint(key_of(at(PEAKS, b)) >= bound);
    uint to = counts_before(count, n_hot);
    if (n_hot > HOT) return 0;
    for (uint b = begin; b < end; b++)
        if (key_of(at(PEAKS, b)) >= bound) hot[to++] = b;
    barrier();
    each = (n_hot * BLOCK + 127) / 128;
    begin = min(t * each, n_hot * BLOCK);
    end = min(begin + each, n_hot * BLOCK);
    count = 0;
    for (uint i = begin; i < end; i++) {
        uint id = hot[i / BLOCK] * BLOCK + i % BLOCK;
        count += uint(id < n && key_of(logit(row, id)) >= bound);
    }
    to = counts_before(count, all);
    if (all > LIST) return 0;
    for (uint i = begin; i < end; i++) {
        uint id = hot[i / BLOCK] * BLOCK + i % BLOCK;
        float x = id < n ? logit(row, id) : 0;
        if (id >= n || key_of(x) < bound) continue;
        list[to] = x;
        list_id[to++] = id;
    }
    barrier();
    return all;
}

// The likeliest: the first block with the largest peak, and the first in it.
uint likeliest(uint n) {
    uint t = gl_LocalInvocationID.x;
    if (t == 0) found = found_ties = 0xffffffffu;
    barrier();
    for (uint b = t; b < blocks; b += 128)
        if (at(PEAKS, b) == top) {
            atomicMin(found, b);
            break;
        }
    barrier();
    uint id = found * BLOCK + t;
    if (t < BLOCK && found < blocks && id < n && logit(row, id) == top) atomicMin(found_ties, id);
    barrier();
    return found_ties;
}

uvec4 philox(uvec2 seed, uvec2 counter) {
    uvec4 c = uvec4(counter, 0, 0);
    for (int i = 0; i < 10; i++) {
        uint h0, l0, h1, l1;
        umulExtended(0xD2511F53u, c.x, h0, l0);
        umulExtended(0xCD9E8D57u, c.z, h1, l1);
        c = uvec4(h1 ^ c.y ^ seed.x, l1, h0 ^ c.w ^ seed.y, l0);
        seed += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return c;
}

void main() {
    uint t = gl_LocalInvocationID.x, id = 0xffffffffu;
    row = gl_WorkGroupID.x;
    uint n = tokens_of(row);
    float most = -infinity();
    for (uint b = t; b < blocks; b += 128) most = max(most, at(PEAKS, b));
    top = team_max(most);
    temperature = setting(row, TEMPERATURE);
    uvec2 draws = uvec2(state(row, DRAWS), state(row, DRAWS + 1));
    if (!is_inf(top) && temperature >= 1e-6) {
        uvec4 r = philox(uvec2(state(row, SEED), state(row, SEED + 1)), draws);
        uvec2 number = uvec2(r.y, r.x);
        uint k = count_of(row, TOP_K), bound = 0;
        float min_p = setting(row, MIN_P);
        if (k > 0 && k < blocks) {
            seen_n = blocks;
            bound = select(PEAKS, Cut(1, 0x7fffffffu), false, uvec2(k, 0)).key;
        } else if (min_p > 0 && !(setting(row, TOP_P) < 1) && k == 0) {
            // A little lower than need be: draw() looks at the odds themselves.
            bound = key_of(top + k_log(min_p) * temperature * 1.0001 - 1e-4 * abs(top));
        }
        uint some = bound != 0 ? gather(n, bound) : 0;
        id = some > 0 ? choose(SHORT, some, number) : choose(ROW, n, number);
        draws = add(draws, uvec2(1, 0));
    } else if (top > -infinity()) {
        id = likeliest(n);
    }
    uint seen = state(row, SEEN);
    for (uint i = t; i < STATE; i += 128) {
        uint word = state(row, i);
        if (i == DRAWS) word = draws.x;
        if (i == DRAWS + 1) word = draws.y;
        if (i == SEEN) word = seen + 1;
        if (i == TOKEN_AT + seen % RING) word = id;
        Words(after).w[row * STATE + i] = word;
    }
    if (t == 0) Words(ids).w[row] = id;
}
