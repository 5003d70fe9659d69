# The CPU kernels, src/backend/cpu/simd/*.c, written once and compiled once per instruction set.
# Each pass defines KM_ISA_SUFFIX, which the sources append to their symbols; the choice among
# them is made at run time.
file(GLOB kermes_simd_sources CONFIGURE_DEPENDS src/backend/cpu/simd/*.c)

# Where there is more than the baseline, it is for x86-64 CPUs of before 2013: -O2 makes it a quarter
# smaller, and compiles faster.
set(KERMES_ISA_FLAGS_base)
if(NOT KERMES_ISA_ONLY_BASE AND CMAKE_BUILD_TYPE STREQUAL "Release")
    set(KERMES_ISA_FLAGS_base -O2)
endif()
set(KERMES_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -ffp-contract=fast)
set(KERMES_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
    -mprefer-vector-width=512 -ffp-contract=fast)

set(KERMES_ISAS base)
if(NOT KERMES_ISA_ONLY_BASE)
    list(APPEND KERMES_ISAS avx2 avx512)
endif()

# Products of bytes have instructions of their own, which make sets of their own of the kernels for
# weights in blocks.
set(kermes_quant_sources ${kermes_simd_sources})
list(FILTER kermes_quant_sources INCLUDE REGEX "/quant_[a-z]*\\.c$")
set(KERMES_ISA_FLAGS_avxvnni ${KERMES_ISA_FLAGS_avx2} -mavxvnni)
set(KERMES_ISA_FLAGS_avx512vnni ${KERMES_ISA_FLAGS_avx512} -mavx512vnni)
set(KERMES_ISA_FLAGS_dotprod -march=armv8.2-a+dotprod)
set(KERMES_BYTE_ISAS)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(KERMES_BYTE_ISAS dotprod)
elseif(NOT KERMES_ISA_ONLY_BASE)
    set(KERMES_BYTE_ISAS avxvnni avx512vnni)
endif()

# Tiles, and pairs of bf16, are for products alone: a folder each, beside kernels for AVX-512.
file(GLOB kermes_amx_sources CONFIGURE_DEPENDS src/backend/cpu/simd/amx/*.c)
file(GLOB kermes_avx512bf16_sources CONFIGURE_DEPENDS src/backend/cpu/simd/bf16/*.c)
set(KERMES_ISA_FLAGS_avx512bf16 ${KERMES_ISA_FLAGS_avx512} -mavx512bf16)
set(KERMES_ISA_FLAGS_amx ${KERMES_ISA_FLAGS_avx512vnni} -mavx512bf16 -mamx-tile -mamx-int8
    -mamx-bf16)
set(KERMES_TILE_ISAS)
if(NOT KERMES_ISA_ONLY_BASE)
    set(KERMES_TILE_ISAS amx avx512bf16)
endif()

# A kernel is one large function after inlining, over which sanitizers take gcc minutes. Checks of
# addresses by calls halve that, and of pointers that are NULL or beyond an object AddressSanitizer tells
# anyway.
set(kermes_simd_sanitized)
if(KERMES_ASAN AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
    set(kermes_simd_sanitized -fno-sanitize=null,object-size
        --param=asan-instrumentation-with-call-threshold=0)
endif()

# Kernels are most of a build's time and know tensors at most, so they are compiled with a copy of kermes.h
# that ends where training, models and vectors begin: a change behind that place leaves them alone.
file(READ include/kermes.h kernel_header)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS include/kermes.h)
string(FIND "${kernel_header}" "#ifndef KERMES_H" first)
string(FIND "${kernel_header}" "/* ---- Training: " last)
if(first EQUAL -1 OR last EQUAL -1)
    message(FATAL_ERROR "include/kermes.h has no guard, or no section on training")
endif()
math(EXPR last "${last} - ${first}")
string(SUBSTRING "${kernel_header}" ${first} ${last} kernel_header)
string(REGEX REPLACE "KM_API_INLINE km[^;]*;[^\n]*\n" "" kernel_header "${kernel_header}")
string(APPEND kernel_header "#ifdef __cplusplus\n}\n#endif\n#endif\n")
set(kernel_headers ${CMAKE_BINARY_DIR}/kernel_headers)
set(written "")
if(EXISTS ${kernel_headers}/kermes.h)
    file(READ ${kernel_headers}/kermes.h written)
endif()
if(NOT written STREQUAL kernel_header)
    file(WRITE ${kernel_headers}/kermes.h "${kernel_header}")
endif()

# clang 14 warns where it leaves a loop alone that is to be unrolled.
set(kermes_simd_quiet)
if(EMSCRIPTEN)
    set(kermes_simd_quiet -Wno-pass-failed)
endif()

if(kermes_simd_sources)
    foreach(isa IN LISTS KERMES_ISAS KERMES_BYTE_ISAS KERMES_TILE_ISAS)
        set(sources ${kermes_simd_sources})
        if(isa IN_LIST KERMES_BYTE_ISAS)
            set(sources ${kermes_quant_sources})
        endif()
        if(isa IN_LIST KERMES_TILE_ISAS)
            set(sources ${kermes_${isa}_sources})
        endif()
        add_library(kermes_simd_${isa} OBJECT ${sources})
        kermes_compile(kermes_simd_${isa})
        target_include_directories(kermes_simd_${isa} BEFORE PRIVATE ${kernel_headers})
        target_compile_definitions(kermes_simd_${isa} PRIVATE KM_ISA_SUFFIX=${isa})
        target_compile_options(kermes_simd_${isa} PRIVATE
            ${KERMES_MATH_FLAGS} ${KERMES_ISA_FLAGS_${isa}} ${kermes_simd_sanitized} ${kermes_simd_quiet})
        set_target_properties(kermes_simd_${isa} PROPERTIES
            POSITION_INDEPENDENT_CODE ${KERMES_PIC} C_VISIBILITY_PRESET ${KERMES_VISIBILITY})
        list(APPEND kermes_object_files $<TARGET_OBJECTS:kermes_simd_${isa}>)
    endforeach()
endif()
