#version 450
#extension GL_GOOGLE_include_directive : require
#define ROWS 1
#include "layer_stream.glsl"
