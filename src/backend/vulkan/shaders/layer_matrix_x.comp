#version 450
#extension GL_GOOGLE_include_directive : require
#define BM 128
#define BN 256
#define WARPS_M 2
#define WARPS_N 4
#include "layer_matrix.glsl"
