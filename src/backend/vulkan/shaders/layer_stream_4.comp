#version 450
#extension GL_GOOGLE_include_directive : require
#define ROWS 4
#include "layer_stream.glsl"
