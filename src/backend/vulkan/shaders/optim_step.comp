#version 450
#extension GL_GOOGLE_include_directive : require
// AdamW, Adam and SGD over all tensors of a call: a workgroup to 1024 elements of one of them, a thread
// to pairs of neighbours, so that 16-bit parameters are written by words.
#include "common.glsl"

layout(constant_id = 0) const uint KIND = 0; // of the parameters
layout(constant_id = 1) const bool ADAM = true;

layout(push_constant) uniform Push {
    uvec2 tensors, control; // control: backend/control.h; 0: the numbers below
    uint count, groups;
    float lr, decay;
    float beta1, rest1, beta2, rest2, eps, scale1, scale2; // rest: 1 - beta; beta1 is SGD's momentum
    uint flag;                                             // decoupled decay; Nesterov's momentum
};

// A tensor's addresses of p, g, m, v, w and of the results for p, m, v, w (0: absent), then numbers.
const uint P = 0, G = 2, M = 4, V = 6, W = 8, P_OUT = 10, M_OUT = 12, V_OUT = 14, W_OUT = 16;
const uint COUNT = 18, FIRST = 19, INDEX = 20, GRAD_KIND = 21, SIZE = 22;
const uint TENSORS = 16; // KM_CONTROL_TENSORS

uint of_tensor;
uint entry(uint i) { return Words(tensors).w[of_tensor + i]; }
uvec2 at(uint i) { return uvec2(entry(i), entry(i + 1)); }

struct Rates {
    float lr, decay, scale1, scale2, multiplier;
    bool skip;
};

Rates rates() {
    Rates r = Rates(lr, decay, scale1, scale2, 1, false);
    if (control == uvec2(0)) return r;
    Floats c = Floats(control);
    r.lr = c.f[0];
    r.scale1 = c.f[1];
    r.scale2 = c.f[2];
    r.multiplier = c.f[3];
    r.skip = c.f[4] != 0;
    int index = int(entry(INDEX));
    if (index >= 0) {
        r.lr *= c.f[TENSORS + 2 * index];
        r.decay = c.f[TENSORS + 2 * index + 1];
    }
    return r;
}

// Element i of the tensor: its states are changed, and the parameter is given back.
float stepped(uint i, Rates r) {
    bool behind = at(W) != uvec2(0), has_m = at(M) != uvec2(0);
    float w = behind ? Floats(at(W)).f[i] : load_float(KIND, at(P), i);
    float m = has_m ? Floats(at(M)).f[i] : 0, v = ADAM ? Floats(at(V)).f[i] : 0;
    if (!r.skip) {
        float d = load_float(entry(GRAD_KIND), at(G), i) * r.multiplier, move;
        if (ADAM) {
            if (flag == 0) d += r.decay * w;
            m = beta1 * m + rest1 * d;
            v = beta2 * v + rest2 * d * d;
            move = m * r.scale1 / (sqrt(v * r.scale2) + eps);
            if (flag != 0) move += r.decay * w;
        } else {
            d += r.decay * w;
            m = beta1 * m + d;
            move = !has_m ? d : flag != 0 ? d + beta1 * m : m;
        }
        w -= r.lr * move;
    }
    if (has_m) Floats(at(M_OUT)).f[i] = m;
    if (ADAM) Floats(at(V_OUT)).f[i] = v;
    if (behind) Floats(at(W_OUT)).f[i] = w;
    return r.skip ? load_float(KIND, at(P), i) : w;
}

void main() {
    uint group = group_index();
    if (group >= groups) return;
    uint low = 0, high = count; // the last tensor that begins at this group or before
    while (high - low > 1) {
        uint mid = (low + high) / 2;
        if (Words(tensors).w[mid * SIZE + FIRST] <= group)
            low = mid;
        else
            high = mid;
    }
    of_tensor = low * SIZE;
    Rates r = rates();
    uint begin = (group - entry(FIRST)) * 1024, n = entry(COUNT);
    uvec2 to = at(P_OUT);
    bool words = KIND != F32 && (to.x & 3u) == 0;
    for (uint k = 0; k < 4; k++) {
        uint i = begin + (k * 128 + gl_LocalInvocationID.x) * 2;
        if (i >= n) return;
        float a = stepped(i, r);
        if (i + 1 >= n) {
            store_float(KIND, to, i, a);
            return;
        }
        float b = stepped(i + 1, r);
        if (words) {
            Words(to).w[i / 2] = to_half(KIND, a) | to_half(KIND, b) << 16;
        } else {
            store_float(KIND, to, i, a);
            store_float(KIND, to, i + 1, b);
        }
    }
}
