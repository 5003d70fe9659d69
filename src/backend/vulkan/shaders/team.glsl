// Sums over a workgroup of THREADS: a multiple of 64, 1024 at most. Every thread calls them and gets the result.
shared float team[THREADS];
float team_sum(float v) {
    uint t = gl_LocalInvocationID.x;
    barrier();
    team[t] = v;
    for (uint n = THREADS / 8; n >= THREADS / 64; n /= 8) {
        barrier();
        float s = 0;
        if (t < n)
            for (uint i = 0; i < 8; i++) s += team[t + i * n];
        barrier();
        if (t < n) team[t] = s;
    }
    barrier();
    float s = 0;
    for (uint i = 0; i < THREADS / 64; i++) s += team[i];
    return s;
}
float team_max(float v) {
    uint t = gl_LocalInvocationID.x;
    barrier();
    team[t] = v;
    for (uint n = THREADS / 8; n >= THREADS / 64; n /= 8) {
        barrier();
        float s = v;
        if (t < n)
            for (uint i = 0; i < 8; i++) s = max_nan(s, team[t + i * n]);
        barrier();
        if (t < n) team[t] = s;
    }
    barrier();
    float s = team[0];
    for (uint i = 1; i < THREADS / 64; i++) s = max_nan(s, team[i]);
    return s;
}
