// Strided operands, as km_vulkan_walk lays them out: n, ndim, dim[5], stride[4][5], start[4].
uint walk_offset(Words w, uint operand, uint i) {
    uint at = w.w[27 + operand];
    for (int a = int(w.w[1]) - 1; a >= 0; a--) {
        uint d = w.w[2 + a], q = i / d;
        at += (i - q * d) * w.w[7 + 5 * operand + a];
        i = q;
    }
    return at;
}
