// Elementary functions with known error: what Vulkan promises of its own is too little for f32.

float k_exp(float x) {
    if (is_nan(x)) return x;
    if (x > 88.8) return infinity();
    if (x < -104.0) return 0;
    float n = floor(x * 1.44269504 + 0.5);
    precise float r = x - n * 0.693359375;
    r = r + n * 2.12194440e-4;
    float p = 1.9875691500e-4;
    p = p * r + 1.3981999507e-3;
    p = p * r + 8.3334519073e-3;
    p = p * r + 4.1665795894e-2;
    p = p * r + 1.6666665459e-1;
    p = p * r + 5.0000001201e-1;
    p = p * r * r + r + 1;
    int e = int(n), half_e = e / 2;
    // In two steps: 2^n may be beyond f32 where the result is not.
    return p * uintBitsToFloat(uint(half_e + 127) << 23) *
           uintBitsToFloat(uint(e - half_e + 127) << 23);
}

float k_log(float x) {
    if (is_nan(x) || x < 0) return nan();
    if (x == 0) return -infinity();
    if (floatBitsToUint(x) == INF_BITS) return x;
    int e = 0;
    if (x < 1.17549435e-38) {
        x *= 8388608.0;
        e = -23;
    }
    uint u = floatBitsToUint(x);
    e += int(u >> 23) - 126;
    float m = uintBitsToFloat((u & 0x7fffffu) | 0x3f000000u);
    if (m < 0.707106781) {
        e -= 1;
        m = m + m - 1;
    } else {
        m = m - 1;
    }
    float z = m * m, p = 7.0376836292e-2;
    p = p * m - 1.1514610310e-1;
    p = p * m + 1.1676998740e-1;
    p = p * m - 1.2420140846e-1;
    p = p * m + 1.4249322787e-1;
    p = p * m - 1.6668057665e-1;
    p = p * m + 2.0000714765e-1;
    p = p * m - 2.4999993993e-1;
    p = p * m + 3.3333331174e-1;
    float y = m * z * p, fe = float(e);
    y += -2.12194440e-4 * fe;
    y += -0.5 * z;
    return m + y + 0.693359375 * fe;
}

float k_tanh(float x) {
    float a = abs(x);
    if (a < 0.625) {
        float z = x * x, p = -5.70498872745e-3;
        p = p * z + 2.06390887954e-2;
        p = p * z - 5.37397155531e-2;
        p = p * z + 1.33314422036e-1;
        p = p * z - 3.33332819422e-1;
        return p * z * x + x;
    }
    if (is_nan(x)) return x;
    float t = a > 10 ? 1 : 1 - 2 / (k_exp(2 * a) + 1);
    return x < 0 ? -t : t;
}

float k_sigmoid(float x) {
    float e = k_exp(-abs(x));
    return x >= 0 ? 1 / (1 + e) : is_nan(x) ? x : e / (1 + e);
}

// (1 + erf(x / sqrt 2)) / 2, with its digits far to the left, too.
float k_normal_cdf(float x) {
    float z = abs(x) * 0.70710678, t = 1 / (1 + 0.5 * z);
    float p = 0.17087277;
    p = p * t - 0.82215223;
    p = p * t + 1.48851587;
    p = p * t - 1.13520398;
    p = p * t + 0.27886807;
    p = p * t - 0.18628806;
    p = p * t + 0.09678418;
    p = p * t + 0.37409196;
    p = p * t + 1.00002368;
    p = p * t - 1.26551223;
    // x^2 / 2 in two parts, so that the exponent's own rounding does not count.
    float h = uintBitsToFloat(floatBitsToUint(abs(x)) & 0xfffff000u);
    precise float low = (abs(x) - h) * (abs(x) + h);
    float tail = is_nan(x) ? x : z > 14 ? 0 : 0.5 * t * k_exp(-0.5 * h * h) * k_exp(p - 0.5 * low);
    return x > 0 ? 1 - tail : tail;
}

float k_gelu_gate(float x) { return k_sigmoid(1.5957691216 * (x + 0.044715 * x * x * x)); }
bool is_inf(float x) { return (floatBitsToUint(x) & 0x7fffffffu) == INF_BITS; }

// As km_act.
float activation(uint act, float x) {
    switch (act) {
    case 1: return max_nan(x, 0);
    case 2: return x * k_gelu_gate(x);
    case 3: return x * k_normal_cdf(x);
    case 4: return x * k_sigmoid(x);
    default: return x;
    }
}
