#version 450
#extension GL_GOOGLE_include_directive : require
#define BM 128
#define BN 128
#define WARPS_M 4
#define WARPS_N 2
#include "layer_matrix.glsl"
