# The CPU kernels, src/backend/cpu/simd/*.c, written once and compiled once per instruction set.
# Each pass defines KM_ISA_SUFFIX, which the sources append to their symbols; the choice among
# them is made at run time.
file(GLOB kermes_simd_sources CONFIGURE_DEPENDS src/backend/cpu/simd/*.c)

set(KERMES_ISA_FLAGS_base)
set(KERMES_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -ffp-contract=fast)
set(KERMES_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
    -mprefer-vector-width=512 -ffp-contract=fast)

set(KERMES_ISAS base)
if(NOT KERMES_ISA_ONLY_BASE)
    list(APPEND KERMES_ISAS avx2 avx512)
endif()

if(kermes_simd_sources)
    foreach(isa IN LISTS KERMES_ISAS)
        add_library(kermes_simd_${isa} OBJECT ${kermes_simd_sources})
        kermes_compile(kermes_simd_${isa})
        target_compile_definitions(kermes_simd_${isa} PRIVATE KM_ISA_SUFFIX=${isa})
        target_compile_options(kermes_simd_${isa} PRIVATE
            ${KERMES_MATH_FLAGS} ${KERMES_ISA_FLAGS_${isa}})
        set_target_properties(kermes_simd_${isa} PROPERTIES
            POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
        list(APPEND kermes_object_files $<TARGET_OBJECTS:kermes_simd_${isa}>)
    endforeach()
endif()
