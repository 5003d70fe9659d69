// Angles counted in turns, for rotary positions: exact products, and cosine and sine of a fraction.

// a * b as two floats, exactly.
vec2 product(float a, float b) {
    float ah = uintBitsToFloat(floatBitsToUint(a) & 0xfffff000u), al = a - ah;
    float bh = uintBitsToFloat(floatBitsToUint(b) & 0xfffff000u), bl = b - bh;
    precise float p = a * b;
    precise float e = ((ah * bh - p) + ah * bl + al * bh) + al * bl;
    return vec2(p, e);
}

// Cosine and sine of so many turns.
vec2 turned(float turns) {
    float n = floor(4 * turns + 0.5), r = (turns - 0.25 * n) * 6.283185307, z = r * r;
    float s = ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * r + r;
    float c = ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z -
              0.5 * z + 1;
    int q = int(n) & 3;
    return q == 0 ? vec2(c, s) : q == 1 ? vec2(-s, c) : q == 2 ? vec2(-c, -s) : vec2(s, -c);
}

// Cosine and sine at a position, where a step of it is high + low turns, divided by `by`.
vec2 rotation(float position, float high, float low, float by) {
    if (by != 1) {
        float q = high / by;
        vec2 back = product(q, by);
        low = (high - back.x - back.y + low) / by;
        high = q;
    }
    vec2 whole = product(position, high);
    return turned(whole.x - floor(whole.x) + (whole.y + position * low));
}
