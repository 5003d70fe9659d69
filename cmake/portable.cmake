# For cmake --toolchain: binaries for every Linux with glibc 2.31 or newer, by the compiler that is here
# and the sysroot that scripts/sysroot makes (KERMES_SYSROOT, or build/sysroot-ARCH of the sources).
# KERMES_ARCH is x86_64 or aarch64; what is not this machine's is cross-compiled and tried by qemu.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES KERMES_ARCH KERMES_SYSROOT)
cmake_host_system_information(RESULT here QUERY OS_PLATFORM)
if(NOT KERMES_ARCH)
    set(KERMES_ARCH ${here})
endif()
if(NOT KERMES_SYSROOT)
    get_filename_component(KERMES_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../build/sysroot-${KERMES_ARCH} ABSOLUTE)
endif()
set(triplet ${KERMES_ARCH}-linux-gnu)
if(NOT KERMES_ARCH STREQUAL here)
    set(CMAKE_SYSTEM_NAME Linux)
    set(CMAKE_SYSTEM_PROCESSOR ${KERMES_ARCH})
    set(CMAKE_C_COMPILER ${triplet}-gcc)
    find_program(KERMES_QEMU NAMES qemu-${KERMES_ARCH} qemu-${KERMES_ARCH}-static)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${KERMES_QEMU} -L ${KERMES_SYSROOT})
endif()
set(CMAKE_LIBRARY_ARCHITECTURE ${triplet})
set(CMAKE_SYSROOT ${KERMES_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${KERMES_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${KERMES_SYSROOT}/usr/lib/${triplet}/pkgconfig:${KERMES_SYSROOT}/usr/share/pkgconfig)
# Cross compilers of Debian look at their own glibc first, so the sysroot's goes before it. Old headers
# have stat() inline over what newer systems no longer link: __NO_INLINE__ makes it a plain call, so that
# the static library serves everywhere. No path of this machine is in what comes out. Each function has a
# section of its own, so that the command leaves out what it never calls; cmake/small.cmake does the rest.
set(lib ${KERMES_SYSROOT}/usr/lib/${triplet})
get_filename_component(sources ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)
set(CMAKE_C_FLAGS_INIT "-D__NO_INLINE__ -ffunction-sections -fdata-sections \"-ffile-prefix-map=${sources}=.\" -isystem \"${KERMES_SYSROOT}/usr/include/${triplet}\" -isystem \"${KERMES_SYSROOT}/usr/include\"")
foreach(kind EXE SHARED MODULE)
    set(CMAKE_${kind}_LINKER_FLAGS_INIT "\"-B${lib}/\" \"-L${lib}\" -Wl,--gc-sections")
endforeach()
set(KERMES_SMALL ON)
