#version 450
#extension GL_GOOGLE_include_directive : require
// Softmax, log-softmax and their gradients along one axis: a workgroup to a line of n elements that lie
// `inner` apart.
#include "common.glsl"
#include "math.glsl"

layout(constant_id = 0) const uint OP = 0; // softmax, log_softmax, softmax_grad, log_softmax_grad
layout(constant_id = 1) const uint KIND = 0;

layout(push_constant) uniform Push {
    uvec2 x, y, o; // y: of the gradients, which take x for dy
    uint lines, n, inner;
};

void main() {
    uint line = group_index(), t = gl_LocalInvocationID.x;
    if (line >= lines) return;
    uint start = line / inner * n * inner + line % inner;
    if (OP < 2) {
        float m = -infinity(), sum = 0;
        for (uint j = t; j < n; j += 128) m = max_nan(m, load_float(KIND, x, start + j * inner));
        m = team_max(m);
        for (uint j = t; j < n; j += 128) sum += k_exp(load_float(KIND, x, start + j * inner) - m);
        sum = team_sum(sum);
        float log_sum = k_log(sum);
        for (uint j = t; j < n; j += 128) {
            float v = load_float(KIND, x, start + j * inner) - m;
            store_float(KIND, o, start + j * inner, OP == 0 ? k_exp(v) / sum : v - log_sum);
        }
    } else {
        float sum = 0;
        for (uint j = t; j < n; j += 128) {
            float g = load_float(KIND, x, start + j * inner);
            sum += OP == 3 ? g : g * load_float(KIND, y, start + j * inner);
        }
        sum = team_sum(sum);
        for (uint j = t; j < n; j += 128) {
            float g = load_float(KIND, x, start + j * inner);
            float v = load_float(KIND, y, start + j * inner);
            store_float(KIND, o, start + j * inner, OP == 3 ? g - k_exp(v) * sum : v * (g - sum));
        }
    }
}
