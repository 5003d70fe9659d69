// Elementwise ops of floats: OP's number is that of elementwise.c. f0, f1, f0_low: its settings.

// What x and a scalar of f64 (in two parts) add or multiply to, rounded about once.
float add_two(float x) {
    precise float s = x + f0;
    precise float v = s - x;
    precise float err = (x - (s - v)) + (f0 - v);
    return is_inf(s) ? s : s + (err + f0_low);
}

float slope_at_infinity(float x) { return x > 0 ? 1 : 0; }
float gelu_slope(float x) {
    if (is_inf(x)) return slope_at_infinity(x);
    float s = k_gelu_gate(x);
    float d = s * (1 - s);
    return d == 0 ? s : s + x * d * (1.5957691216 * (1 + 0.134145 * x * x));
}
float gelu_erf_slope(float x) {
    if (is_inf(x)) return slope_at_infinity(x);
    return k_normal_cdf(x) + x * 0.39894228 * k_exp(-0.5 * x * x);
}
float silu_slope(float x) {
    if (is_inf(x)) return slope_at_infinity(x);
    float s = k_sigmoid(x);
    return s + x * s * (1 - s);
}

float apply(float x, float y) {
    switch (OP) {
    case 0: return -x;
    case 1: return abs(x);
    case 2: return sqrt(x);
    case 3: return 1 / sqrt(x);
    case 4: return k_exp(x);
    case 5: return k_log(x);
    case 6: return k_tanh(x);
    case 7: return k_sigmoid(x);
    case 8: return max_nan(x, 0);
    case 9: return x * k_gelu_gate(x);
    case 10: return x * k_normal_cdf(x);
    case 11: return x * k_sigmoid(x);
    case 12: return min_nan(max_nan(x, f0), f1);
    case 13: return add_two(x);
    case 14: return x * f0;
    case 20: return x + y;
    case 21: return x - y;
    case 22: return x * y;
    case 23: return x / y;
    case 24: return max_nan(x, y);
    case 25: return min_nan(x, y);
    case 30: return is_nan(x) ? x : x * (y > 0 ? 1 : y < 0 ? -1 : 0);
    case 31: return x / (2 * y);
    case 32: return -0.5 * x * y * y * y;
    case 33: return x * (1 - y * y);
    case 34: return x * y * (1 - y);
    case 35: return y > 0 ? x : 0;
    case 36: return x * gelu_slope(y);
    case 37: return x * gelu_erf_slope(y);
    case 38: return x * silu_slope(y);
    case 39: return y >= f0 && y <= f1 ? x : 0;
    default: return nan();
    }
}
