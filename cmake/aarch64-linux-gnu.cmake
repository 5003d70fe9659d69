# For cmake --toolchain: builds for 64-bit ARM on another machine, with Debian's cross compiler and
# its libraries of that architecture, and runs the test programs by qemu.
#
#   dpkg --add-architecture arm64 && apt-get update
#   apt-get install gcc-aarch64-linux-gnu qemu-user libjansson-dev:arm64 libxxhash-dev:arm64 \
#       libpcre2-dev:arm64 libutf8proc-dev:arm64 libcmocka-dev:arm64
#   cmake --preset aarch64
#   cmake --build --preset aarch64 --target kermes test_vector_scan test_vector_index
#   ctest --preset aarch64 -R 'vector/(scan|index)'
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
find_program(KERMES_CROSS_CXX aarch64-linux-gnu-g++)
set(CMAKE_CXX_COMPILER ${KERMES_CROSS_CXX})
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
