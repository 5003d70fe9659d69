#version 450
#extension GL_GOOGLE_include_directive : require
// The numbers of an optimiser step (backend/control.h) from the sums of squares of its gradients: one
// workgroup. The result may be the very control that was read.
#include "common.glsl"
#include "math.glsl"

layout(push_constant) uniform Push {
    uvec2 sums, knobs, old, o;
    uint n_sums, n, growth;
    float most, log_beta1, log_beta2;
};

const uint LR = 0, SCALE1 = 1, SCALE2 = 2, GRAD = 3, SKIP = 4, NORM = 5, STEPS = 6, SKIPS = 7, LOSS = 8,
           GOOD = 9, TENSORS = 16;

// 1 - e^x for x <= 0, with its digits where x is small.
float one_minus_exp(float x) {
    if (x < -0.35) return 1 - k_exp(x);
    float p = 1;
    for (int i = 9; i > 1; i--) p = p * x / float(i) + 1;
    return -x * p;
}

// The square root of the sum, which itself may be beyond f32.
float root_of_sum() {
    uint t = gl_LocalInvocationID.x;
    float largest = 0, s = 0;
    for (uint i = t; i < n_sums; i += 128) largest = max_nan(largest, Floats(sums).f[i]);
    largest = team_max(largest);
    float by = largest > 0 && !is_inf(largest) && !is_nan(largest) ? largest : 1;
    for (uint i = t; i < n_sums; i += 128) s += Floats(sums).f[i] / by;
    s = team_sum(s);
    return s < 0 || is_nan(s) ? nan() : is_inf(s) ? s : sqrt(by) * sqrt(s);
}

void main() {
    uint t = gl_LocalInvocationID.x;
    float root = root_of_sum();
    for (uint i = TENSORS + t; i < n; i += 128) Floats(o).f[i] = Floats(old).f[i];
    if (t > 0) return;
    float loss = Floats(old).f[LOSS], good = Floats(old).f[GOOD];
    float steps = Floats(old).f[STEPS], skips = Floats(old).f[SKIPS];
    float multiplier = Floats(knobs).f[1] / loss, norm = root * multiplier;
    bool skip = is_nan(norm) || is_inf(norm);
    if (most > 0 && norm > most) multiplier *= most / norm;
    if (skip)
        skips += 1;
    else
        steps += 1;
    good = skip ? 0 : good + 1;
    if (growth > 0 && skip) loss = max(loss / 2, 9.5367431640625e-7);
    if (growth > 0 && good >= float(growth)) {
        loss = min(loss * 2, 16777216.0);
        good = 0;
    }
    float at = max(steps, 1);
    float head[TENSORS];
    for (uint i = 0; i < TENSORS; i++) head[i] = 0;
    head[LR] = Floats(knobs).f[0];
    head[SCALE1] = 1 / one_minus_exp(at * log_beta1);
    head[SCALE2] = 1 / one_minus_exp(at * log_beta2);
    head[GRAD] = skip ? 0 : multiplier;
    head[SKIP] = skip ? 1 : 0;
    head[NORM] = norm;
    head[STEPS] = steps;
    head[SKIPS] = skips;
    head[LOSS] = loss;
    head[GOOD] = good;
    for (uint i = 0; i < TENSORS; i++) Floats(o).f[i] = head[i];
}
