#version 450
#extension GL_GOOGLE_include_directive : require
#define BM 64
#define BN 64
#define WARPS_M 2
#define WARPS_N 2
#include "layer_matrix.glsl"
